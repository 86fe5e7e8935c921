import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import org.opensearch.common.logging.LogConfigurator;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;

/** One node of OpenSearch for tests: HOME DATA HTTP_PORT TRANSPORT_PORT [NAME=VALUE ...]. Its own start needs a whole distribution. */
public class OpenSearchNode extends Node {
  OpenSearchNode(Environment environment, Collection plugins) {
    super(environment, plugins, true);
  }

  public static void main(String[] arguments) throws Exception {
    Path data = Paths.get(arguments[1], new String[0]);
    Settings.Builder settings = Settings.builder().put("path.home", arguments[0]).put("path.data", arguments[1] + "/data").put("path.logs", arguments[1] + "/logs");
    settings.put("cluster.name", "sluice").put("node.name", "n1").put("discovery.type", "single-node").put("network.host", "127.0.0.1");
    settings.put("http.port", arguments[2]).put("transport.port", arguments[3]).put("http.type", "netty4").put("transport.type", "netty4");
    settings.put("action.auto_create_index", "false").put("cluster.routing.allocation.disk.threshold_enabled", false);
    for (int number = 4; number < arguments.length; number++) {
      String[] parts = arguments[number].split("=", 2);
      settings.put(parts[0], parts[1]);
    }
    LogConfigurator.registerErrorListener();
    LogConfigurator.configureWithoutConfig(settings.build());
    java.util.function.Supplier name = new java.util.function.Supplier() {
      public Object get() {
        return "n1";
      }
    };
    Environment environment = InternalSettingsPreparer.prepareEnvironment(settings.build(), new HashMap(), data.resolve("config"), name);
    List plugins = new ArrayList();
    plugins.add(Class.forName("org.opensearch.transport.Netty4Plugin"));
    plugins.add(Class.forName("org.opensearch.analysis.common.CommonAnalysisPlugin"));
    new OpenSearchNode(environment, plugins).start();
    Thread.currentThread().join();
  }
}
