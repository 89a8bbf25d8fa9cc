import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;

/**
 * Reads an engine (`re2j` or `java`), a pattern and a text, both UTF-8 as hex, a line each, and writes whether the whole
 * text matches: `true`, `false`, or `refused` for what is no pattern. For the engine `ranges` it writes all characters
 * that RE2/J's pattern of one character matches, as code points in hex, `FIRST-LAST,…`.
 */
public final class PatternChecks {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split(" ", -1);
            out.append(answer(fields[0], text(fields[1]), text(fields[2]))).append('\n');
        }
        System.out.print(out);
    }

    private static String text(String hex) {
        return new String(HexFormat.of().parseHex(hex), StandardCharsets.UTF_8);
    }

    private static String ranges(com.google.re2j.Pattern pattern) {
        if (all == null)
            all = java.util.stream.IntStream.rangeClosed(0, Character.MAX_CODE_POINT)
                .filter(point -> point < Character.MIN_SURROGATE || point > Character.MAX_SURROGATE)
                .collect(StringBuilder::new, StringBuilder::appendCodePoint, StringBuilder::append).toString();
        java.util.StringJoiner found = new java.util.StringJoiner(",");
        com.google.re2j.Matcher matcher = pattern.matcher(all);
        while (matcher.find())
            found.add(Integer.toHexString(all.codePointAt(matcher.start())) + "-"
                + Integer.toHexString(all.codePointBefore(matcher.end())));
        return found.length() == 0 ? "none" : found.toString();
    }

    private static String all;

    private static String answer(String engine, String pattern, String text) {
        try {
            if (engine.equals("ranges")) return ranges(com.google.re2j.Pattern.compile("(?:" + pattern + ")+"));
            if (engine.equals("re2j"))
                return String.valueOf(com.google.re2j.Pattern.compile(pattern).matcher(text).matches());
            return String.valueOf(java.util.regex.Pattern.compile(pattern).matcher(text).matches());
        } catch (com.google.re2j.PatternSyntaxException | java.util.regex.PatternSyntaxException refused) {
            return "refused";
        }
    }
}
