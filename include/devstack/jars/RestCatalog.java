import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.handler.gzip.GzipHandler;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** Iceberg's REST catalog for tests over SQLite, on one address: HOST PORT CATALOG_DB WAREHOUSE. Its own main class answers on all of them. */
public class RestCatalog {
  public static void main(String[] arguments) throws Exception {
    Map properties = new HashMap();
    properties.put("catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog");
    properties.put("jdbc.schema-version", "V1");
    properties.put("uri", "jdbc:sqlite:file:" + arguments[2]);
    properties.put("warehouse", "file://" + arguments[3]);
    properties.put("clients", "1"); // SQLite has one writer
    RESTCatalogAdapter catalog = new RESTCatalogAdapter(CatalogUtil.buildIcebergCatalog("rest_backend", properties, new Configuration()));
    ServletContextHandler context = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    context.addServlet(new ServletHolder(new RESTCatalogServlet(catalog)), "/*");
    context.insertHandler(new GzipHandler());
    Server server = new Server(new InetSocketAddress(arguments[0], Integer.parseInt(arguments[1])));
    server.setHandler(context);
    server.start();
    server.join();
  }
}
