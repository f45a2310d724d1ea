/* Run a ResourceManager and a NodeManager on loopback in one process, until standard input ends. */
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.apache.hadoop.service.Service;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.nodemanager.NodeManager;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;

class Yarn {
  public static void main(String[] a) {
    try {
      run(Path.of(a[0]));
    } catch (Throwable error) {
      error.printStackTrace();
    }
    System.exit(0);  // threads of theirs would go on
  }

  static void run(Path folder) throws Exception {
    YarnConfiguration conf = new YarnConfiguration();
    for (String each : new String[] {"", ".scheduler", ".admin", ".resource-tracker", ".webapp"})
      conf.set("yarn.resourcemanager" + each + ".address", "127.0.0.1:0");
    for (String each : new String[] {"", ".localizer", ".webapp"})
      conf.set("yarn.nodemanager" + each + ".address", "127.0.0.1:0");
    conf.set("fs.defaultFS", "file:///");
    conf.set("hadoop.tmp.dir", folder + "/tmp");
    conf.set("yarn.nodemanager.log-dirs", folder + "/logs");
    conf.set("yarn.nodemanager.local-dirs", folder + "/local");
    conf.set("yarn.nodemanager.resource.memory-mb", "4096");
    conf.set("yarn.nodemanager.resource.cpu-vcores", "4");
    // A small machine is no reason to end a container, nor a full disk to start none.
    conf.set("yarn.nodemanager.pmem-check-enabled", "false");
    conf.set("yarn.nodemanager.vmem-check-enabled", "false");
    conf.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "100");
    conf.set("yarn.scheduler.minimum-allocation-mb", "256");
    conf.set("yarn.scheduler.capacity.root.queues", "default");
    conf.set("yarn.scheduler.capacity.root.default.capacity", "100");
    conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1");
    DefaultMetricsSystem.setMiniClusterMode(true);
    // Each writes the ports that it took into the settings, where the next one and Spark find them.
    Service[] parts = {new ResourceManager(), new NodeManager()};
    for (Service part : parts) {
      part.init(conf);
      part.start();
    }
    Path draft = folder.resolve("draft");
    try (OutputStream file = Files.newOutputStream(draft)) {
      conf.writeXml(file);
    }
    Files.move(draft, Files.createDirectories(folder.resolve("conf")).resolve("yarn-site.xml"));
    while (System.in.read() >= 0) {}
    parts[1].stop();
    parts[0].stop();
  }
}
