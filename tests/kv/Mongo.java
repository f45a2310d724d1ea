/* Start mongo-java-server on a port of loopback. It says that it is MongoDB 5, for the client takes no older one. */
import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import java.util.List;

class Mongo {
  public static void main(String[] a) {
    MongoVersion version = new MongoVersion() {
      public List<Integer> getVersionArray() { return List.of(5, 0, 0); }
      public int getWireVersion() { return 13; }
    };
    new MongoServer(new MemoryBackend().version(version)).bind("127.0.0.1", Integer.parseInt(a[0]));
  }
}
