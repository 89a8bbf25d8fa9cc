#!/usr/bin/env bash
# re2j 1.8 (Java 17), with which Kafka 4.4.0 matches the subscriptions of KIP-848 groups and the pattern of ListTransactions.
# Expected: `\pL` and other classes are those of a current Unicode, and `(?i)` is nothing that could be repeated.
# Seen: the tables are Unicode 6.0's: U+20BA (6.2), U+A7AE (9.0) and U+1C90 (11.0) are in no class. `a(?i)*` repeats the `a`
# before the flag; Java's own library refuses it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
maven_jars com.google.re2j:re2j:1.8
run_java Tables > seen << 'JAVA'
import com.google.re2j.Pattern;

public class Tables {
    private static void show(String pattern, String text) {
        System.out.println(pattern + " U+" + Integer.toHexString(text.codePointAt(0)).toUpperCase() + " re2j "
            + Pattern.matches(pattern, text) + ", java " + text.matches(pattern));
    }

    public static void main(String[] arguments) {
        show("\\p{Sc}", "\u20ac");
        show("\\p{Sc}", "\u20ba");
        show("\\pL", "a");
        show("\\pL", "\ua7ae");
        show("\\pL", "\u1c90");
        System.out.println("a(?i)* aaa re2j " + Pattern.matches("a(?i)*", "aaa"));
        try {
            System.out.println("java " + "aaa".matches("a(?i)*"));
        } catch (java.util.regex.PatternSyntaxException error) {
            System.out.println("java: " + error.getDescription());
        }
    }
}
JAVA
same seen << 'EXPECTED'
\p{Sc} U+20AC re2j true, java true
\p{Sc} U+20BA re2j false, java true
\pL U+61 re2j true, java true
\pL U+A7AE re2j false, java true
\pL U+1C90 re2j false, java true
a(?i)* aaa re2j true
java: Dangling meta character '*'
EXPECTED
