import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

import org.apache.arrow.flight.CallOption;
import org.apache.arrow.flight.FlightClient;
import org.apache.arrow.flight.FlightStream;
import org.apache.arrow.flight.Location;
import org.apache.arrow.flight.Ticket;
import org.apache.arrow.flight.auth2.BearerCredentialWriter;
import org.apache.arrow.flight.grpc.CredentialCallOption;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;

/** Prints the rows of a ticket, a line each, and what is said after each batch: ADDRESS TICKET. The token is the variable SLUICE_TOKEN. */
public class Read {
    public static void main(String[] arguments) throws Exception {
        Ticket ticket = new Ticket(arguments[1].getBytes(StandardCharsets.UTF_8));
        try (BufferAllocator memory = new RootAllocator();
                FlightClient client = FlightClient.builder(memory, new Location(arguments[0])).build();
                FlightStream stream = client.getStream(ticket, options())) {
            while (stream.next()) {
                ArrowBuf said = stream.getLatestMetadata();
                if (said != null) { // {"batch": 42, ...}: the end of a batch; or {"reset": ...}: all rows come anew
                    System.out.println("said\t" + text(said));
                } else {
                    print(stream.getRoot());
                }
            }
        }
    }

    static CallOption[] options() {
        String token = System.getenv("SLUICE_TOKEN");
        return token == null
                ? new CallOption[0]
                : new CallOption[] {new CredentialCallOption(new BearerCredentialWriter(token))};
    }

    static void print(VectorSchemaRoot rows) {
        for (int row = 0; row < rows.getRowCount(); row++) {
            List<String> values = new ArrayList<>();
            for (FieldVector column : rows.getFieldVectors()) {
                values.add(column.getName() + "=" + column.getObject(row));
            }
            System.out.println("row\t" + String.join("\t", values));
        }
    }

    static String text(ArrowBuf said) {
        byte[] bytes = new byte[(int) said.readableBytes()];
        said.getBytes(said.readerIndex(), bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
