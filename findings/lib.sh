# Sourced by every finding: a temporary folder that is removed at the end, packages by name and version, and a comparison.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# python_packages NAME==VERSION…: a virtual environment in env/.
python_packages() {
    python3 -m venv env
    env/bin/python -m pip install --quiet --disable-pip-version-check "$@"
}

# node_packages NAME@VERSION…: node_modules/.
node_packages() {
    npm install --no-audit --no-fund --ignore-scripts --loglevel=error "$@" > /dev/null
}

# maven_jars GROUP:ARTIFACT:VERSION…: the jars and what they need, in libs/.
maven_jars() {
    local wanted='' group artifact version coordinates
    for coordinates in "$@"; do
        IFS=: read -r group artifact version <<< "$coordinates"
        wanted+="<dependency><groupId>$group</groupId><artifactId>$artifact</artifactId><version>$version</version></dependency>"
    done
    printf '<project><modelVersion>4.0.0</modelVersion><groupId>f</groupId><artifactId>f</artifactId><version>1</version><dependencies>%s</dependencies></project>' "$wanted" > pom.xml
    mvn --quiet --batch-mode -f pom.xml dependency:copy-dependencies -DoutputDirectory=libs > maven.log || { cat maven.log; return 1; }
}

# run_java CLASS: compile CLASS.java from standard input and run it.
run_java() {
    cat > "$1.java"
    javac -cp 'libs/*' "$1.java"
    java -cp 'libs/*:.' "$1"
}

# same FILE: compare it with standard input; print it when it is the same, else the difference, and fail.
same() {
    diff -u --label expected --label seen - "$1" && cat "$1"
}
