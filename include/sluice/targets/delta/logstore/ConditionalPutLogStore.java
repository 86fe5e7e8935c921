package sluice.delta;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Commits of Delta for Spark on S3 by conditional puts (If-None-Match), as delta-rs makes them: of two that make the same version, the store takes
 * one, whatever wrote the other.
 *
 * <p>Delta's own log store for S3 looks whether a version is there and then writes it, under a lock of its own process: a commit of any other process
 * that comes between is overwritten.
 */
public final class ConditionalPutLogStore extends S3SingleDriverLogStore {
  /** Known to S3A of Hadoop 3.4.2 and newer. */
  private static final String ONLY_NEW = "fs.option.create.conditional.overwrite";

  public ConditionalPutLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(Path path, Iterator<String> lines, Boolean overwrite, Configuration configuration) throws IOException {
    if (overwrite) {
      super.write(path, lines, true, configuration);
      return;
    }
    ByteArrayOutputStream whole = new ByteArrayOutputStream(); // before anything is opened: a stream that is closed is written
    while (lines.hasNext()) {
      whole.write((lines.next() + "\n").getBytes(StandardCharsets.UTF_8));
    }
    FileSystem files = path.getFileSystem(configuration);
    try {
      // must: a client that does not know the condition refuses, and one where it is switched off, too
      FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path).overwrite(true);
      builder.must(ONLY_NEW, true);
      FSDataOutputStream out = (FSDataOutputStream) builder.build();
      out.write(whole.toByteArray());
      out.close();
    } catch (IOException error) {
      if (!files.exists(path)) {
        throw error;
      }
      // The version is taken: by another commit, or by this one, whose answer was lost. Delta reads it, and knows its own by what it notes.
      FileAlreadyExistsException taken = new FileAlreadyExistsException(path.toUri().toString());
      taken.initCause(error);
      throw taken;
    }
  }
}
