import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Collections;
import java.util.Iterator;

import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.json.JsonConverter;

/** Reads messages as a sink of Kafka Connect does: lines of topic, key and value, tabs between them, the last two in base64. */
public class ConnectReader {
    public static void main(String[] args) throws Exception {
        JsonConverter keys = new JsonConverter();
        JsonConverter values = new JsonConverter();
        keys.configure(Collections.singletonMap("schemas.enable", "true"), true);
        values.configure(Collections.singletonMap("schemas.enable", "true"), false);
        BufferedReader lines = new BufferedReader(new InputStreamReader(new FileInputStream(args[0]), StandardCharsets.UTF_8));
        String line;
        while ((line = lines.readLine()) != null) {
            String[] parts = line.split("\t", -1);
            SchemaAndValue key = keys.toConnectData(parts[0], bytes(parts[1]));
            SchemaAndValue value = values.toConnectData(parts[0], bytes(parts[2]));
            Struct document = (Struct) value.value();
            Struct row = document == null ? null : document.getStruct("after");
            System.out.println(shown(key.schema(), key.value()) + "\t" + (row == null ? "null" : shown(row.schema(), row)));
        }
    }

    private static byte[] bytes(String text) {
        return text.length() == 0 ? null : Base64.getDecoder().decode(text);
    }

    private static String shown(Schema schema, Object value) {
        if (!(value instanceof Struct)) {
            return String.valueOf(value);
        }
        StringBuilder made = new StringBuilder();
        Iterator fields = schema.fields().iterator();
        while (fields.hasNext()) {
            Field field = (Field) fields.next();
            Object one = ((Struct) value).get(field);
            String name = field.schema().name();
            made.append(field.name()).append('=').append(name == null ? field.schema().type().getName() : name).append(':');
            made.append(one instanceof java.math.BigDecimal ? ((java.math.BigDecimal) one).toPlainString() : String.valueOf(one)).append('|');
        }
        return made.toString();
    }
}
