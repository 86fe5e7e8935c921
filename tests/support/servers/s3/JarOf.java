import java.io.File;
import java.io.FileOutputStream;
import java.util.Iterator;
import java.util.Map;
import java.util.jar.JarEntry;
import java.util.jar.JarOutputStream;
import org.codehaus.janino.SimpleCompiler;

/** Compiles one file and writes a jar of its classes, with PySpark's compiler: SOURCE JAR. */
public class JarOf {
  public static void main(String[] arguments) throws Exception {
    SimpleCompiler compiler = new SimpleCompiler();
    compiler.cookFile(new File(arguments[0]));
    JarOutputStream jar = new JarOutputStream(new FileOutputStream(arguments[1]));
    for (Iterator made = compiler.getBytecodes().entrySet().iterator(); made.hasNext();) {
      Map.Entry one = (Map.Entry) made.next();
      jar.putNextEntry(new JarEntry(((String) one.getKey()).replace('.', '/') + ".class"));
      jar.write((byte[]) one.getValue());
      jar.closeEntry();
    }
    jar.close();
  }
}
