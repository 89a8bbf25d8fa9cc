package minibroker.junit;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** JSON as far as the control API speaks it: maps, lists, texts, numbers (Long or Double), booleans and null. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    static Object parse(String text) {
        return new Json(text).value();
    }

    /** Text for a map, a list, a text, a number, a boolean or null. */
    static String write(Object value) {
        if (value instanceof Map<?, ?> map) {
            List<String> parts = new ArrayList<>();
            map.forEach((name, one) -> parts.add(write(name) + ": " + write(one)));
            return "{" + String.join(", ", parts) + "}";
        }
        if (value instanceof Iterable<?> list) {
            List<String> parts = new ArrayList<>();
            list.forEach(one -> parts.add(write(one)));
            return "[" + String.join(", ", parts) + "]";
        }
        return value instanceof String word ? quoted(word) : String.valueOf(value);
    }

    private static String quoted(String word) {
        StringBuilder made = new StringBuilder("\"");
        for (char letter : word.toCharArray()) {
            if (letter == '"' || letter == '\\') {
                made.append('\\').append(letter);
            } else if (letter < ' ') {
                made.append(String.format("\\u%04x", (int) letter));
            } else {
                made.append(letter);
            }
        }
        return made.append('"').toString();
    }

    private Object value() {
        char first = next();
        if (first == '{') {
            Map<String, Object> map = new LinkedHashMap<>();
            while (more('}')) {
                String name = (String) value();
                expect(':');
                map.put(name, value());
            }
            return map;
        }
        if (first == '[') {
            List<Object> list = new ArrayList<>();
            while (more(']')) {
                list.add(value());
            }
            return list;
        }
        at--;
        return first == '"' ? string() : word();
    }

    /** Whether another entry follows, with the comma before it taken; at the end `end` is taken. */
    private boolean more(char end) {
        char found = next();
        if (found == end) {
            return false;
        }
        if (found != ',') {
            at--;
        }
        return true;
    }

    private char next() {
        while (Character.isWhitespace(text.charAt(at))) {
            at++;
        }
        return text.charAt(at++);
    }

    private void expect(char wanted) {
        if (next() != wanted) {
            throw new IllegalStateException("no JSON at " + (at - 1) + ": " + text);
        }
    }

    private String string() {
        StringBuilder made = new StringBuilder();
        for (at++; text.charAt(at) != '"'; at++) {
            if (text.charAt(at) != '\\') {
                made.append(text.charAt(at));
                continue;
            }
            char escape = text.charAt(++at);
            if (escape == 'u') {
                made.append((char) Integer.parseInt(text.substring(at + 1, at + 5), 16));
                at += 4;
            } else {
                made.append(switch (escape) {
                    case 'n' -> '\n';
                    case 't' -> '\t';
                    case 'r' -> '\r';
                    case 'b' -> '\b';
                    case 'f' -> '\f';
                    default -> escape;
                });
            }
        }
        at++;
        return made.toString();
    }

    private Object word() {
        int begin = at;
        while (at < text.length() && ",]} \n\r\t:".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        String word = text.substring(begin, at);
        return switch (word) {
            case "true" -> true;
            case "false" -> false;
            case "null" -> null;
            default -> word.matches("-?\\d+") ? (Object) Long.valueOf(word) : (Object) Double.valueOf(word);
        };
    }
}
