import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.HexFormat;

/**
 * Reads certificates (DER as hex, one a line) and writes the name that a principal has of each, as Kafka's
 * DefaultKafkaPrincipalBuilder takes it from the session: UTF-8 as hex, or `refused` for what is no certificate to Java.
 */
public final class SubjectNames {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        HexFormat hex = HexFormat.of();
        CertificateFactory factory = CertificateFactory.getInstance("X.509");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String said;
            try {
                byte[] der = hex.parseHex(line);
                X509Certificate read =
                    (X509Certificate) factory.generateCertificate(new ByteArrayInputStream(der));
                String name = read.getSubjectX500Principal().getName();
                said = "name " + hex.formatHex(name.getBytes(StandardCharsets.UTF_8));
            } catch (CertificateException refused) {
                said = "refused";
            }
            System.out.println(said);
        }
    }
}
