import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.HashMap;
import java.util.HashSet;
import org.elasticsearch.common.logging.LogConfigurator;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.env.Environment;
import org.elasticsearch.node.InternalSettingsPreparer;
import org.elasticsearch.node.Node;
import org.elasticsearch.plugins.PluginsLoader;

/** One node of Elasticsearch for tests: HOME DATA HTTP_PORT TRANSPORT_PORT [NAME=VALUE ...]. Its own start needs a whole distribution. */
public class ElasticsearchNode {
  public static void main(String[] arguments) throws Exception {
    Path home = Paths.get(arguments[0]);
    Path data = Paths.get(arguments[1]);
    Settings.Builder settings = Settings.builder().put("path.home", home).put("path.data", data.resolve("data")).put("path.logs", data.resolve("logs"));
    settings.put("cluster.name", "sluice").put("node.name", "n1").put("discovery.type", "single-node").put("network.host", "127.0.0.1");
    settings.put("http.port", arguments[2]).put("transport.port", arguments[3]).put("action.auto_create_index", "false");
    settings.put("cluster.routing.allocation.disk.threshold_enabled", false);
    for (int number = 4; number < arguments.length; number++) {
      String[] parts = arguments[number].split("=", 2);
      settings.put(parts[0], parts[1]);
    }
    LogConfigurator.configureESLogging();
    LogConfigurator.configureWithoutConfig(settings.build());
    java.util.function.Supplier name = new java.util.function.Supplier() {
      public Object get() {
        return "n1";
      }
    };
    Environment environment = InternalSettingsPreparer.prepareEnvironment(settings.build(), new HashMap(), data.resolve("config"), name);
    PluginsLoader plugins = PluginsLoader.createPluginsLoader(PluginsLoader.loadModulesBundles(environment.modulesDir()), new HashSet(), new HashMap(), false);
    new Node(environment, plugins).start();
    Thread.currentThread().join();
  }
}
