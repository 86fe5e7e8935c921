import java.nio.charset.StandardCharsets;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.apache.arrow.flight.FlightClient;
import org.apache.arrow.flight.FlightDescriptor;
import org.apache.arrow.flight.FlightStream;
import org.apache.arrow.flight.Location;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;

/** Prints the rows of a named subscription and acknowledges each batch: ADDRESS TICKET. The ticket has {@code subscription}. Goes with Read.java. */
public class Subscribe {
    /** Of a mark after a batch; the other messages do not begin so. */
    private static final Pattern BATCH = Pattern.compile("^\\{\"batch\":(\\d+),.*");

    public static void main(String[] arguments) throws Exception {
        FlightDescriptor ticket = FlightDescriptor.command(arguments[1].getBytes(StandardCharsets.UTF_8));
        try (BufferAllocator memory = new RootAllocator();
                FlightClient client = FlightClient.builder(memory, new Location(arguments[0])).build();
                FlightClient.ExchangeReaderWriter call = client.doExchange(ticket, Read.options())) {
            FlightStream stream = call.getReader();
            while (stream.next()) {
                ArrowBuf said = stream.getLatestMetadata();
                if (said == null) {
                    Read.print(stream.getRoot());
                    continue;
                }
                String message = Read.text(said);
                System.out.println("said\t" + message);
                Matcher mark = BATCH.matcher(message);
                if (mark.matches()) { // all rows of the batch are there
                    say(call, memory, "{\"ack\": " + mark.group(1) + "}");
                } else if (message.startsWith("{\"end\":")) { // nothing more comes
                    call.getWriter().completed();
                }
            }
        }
    }

    private static void say(FlightClient.ExchangeReaderWriter call, BufferAllocator memory, String message) {
        byte[] bytes = message.getBytes(StandardCharsets.UTF_8);
        ArrowBuf said = memory.buffer(bytes.length); // given away: the call frees it
        said.writeBytes(bytes);
        call.getWriter().putMetadata(said);
    }
}
