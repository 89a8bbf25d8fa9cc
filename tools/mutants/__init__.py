"""Plants small defects in the product, one at a time, and says which of them the tests see.

    python -m mutants --count 300 --seed 1            # what was seen, by folder, and every defect that was not
    python -m mutants --count 40 --only storage       # in files whose path has this text
    python -m mutants --again build/mutants/1.json    # only those that an earlier run did not see

The operators are cosmic-ray's, and one that deletes a statement. The first run records which test runs which line,
in one run of the tests; a defect is then shown to the tests of its line, those of the file's own test first,
then the quick ones, until one of them fails or `--seconds` of tests have passed. The tests are collected once; each
defect has a process forked from there. A test counts only if it passes without the defect. Needs the extra `mutants`.
"""
