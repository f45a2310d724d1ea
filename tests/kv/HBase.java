/* Start HBase in one process, on loopback: a coordinator, a master with a region server, and then the REST server. */
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.LocalHBaseCluster;
import org.apache.hadoop.hbase.rest.RESTServer;
import org.apache.hadoop.hbase.zookeeper.MiniZooKeeperCluster;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.apache.log4j.BasicConfigurator;
import org.apache.log4j.Level;
import org.apache.log4j.Logger;

class HBase {
  public static void main(String[] a) throws Exception {
    BasicConfigurator.configure();
    Logger.getRootLogger().setLevel(Level.WARN);
    String folder = a[0], port = a[1], here = "127.0.0.1";
    Configuration conf = HBaseConfiguration.create();
    conf.set("hbase.rootdir", "file://" + folder + "/root");
    conf.set("hbase.tmp.dir", folder + "/tmp");
    conf.set("hbase.wal.provider", "filesystem");
    conf.set("hbase.unsafe.stream.capability.enforce", "false");
    for (String part : new String[] {"master", "regionserver"}) {
      conf.set("hbase." + part + ".ipc.address", here);
      conf.set("hbase." + part + ".hostname", here);
      conf.set("hbase." + part + ".port", "0");
      conf.set("hbase." + part + ".info.port", "-1");
    }
    conf.set("hbase.rest.host", here);
    conf.set("hbase.rest.port", port);
    conf.set("hbase.rest.info.port", "-1");  // else a fixed one, on every interface
    DefaultMetricsSystem.setMiniClusterMode(true);
    MiniZooKeeperCluster coordinator = new MiniZooKeeperCluster(conf);
    // Empty at each start: of an old one, it would wait until the sessions of what was killed have ended.
    int found = coordinator.startup(Files.createTempDirectory(Path.of(folder), "zookeeper").toFile());
    conf.set("hbase.zookeeper.quorum", here);
    conf.set("hbase.zookeeper.property.clientPort", String.valueOf(found));
    LocalHBaseCluster cluster = new LocalHBaseCluster(conf, 1);
    cluster.startup();
    while (!cluster.getMaster(0).isInitialized()) Thread.sleep(20);
    new RESTServer(conf).run();
  }
}
