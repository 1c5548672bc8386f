#!/bin/sh
# tools/rdmatests.sh FOLDER... prints a pattern for -run of the tests of packages that use an RDMA
# device. They are those that reach SOFTROCE_ADDR, which is its address, through the functions of the
# tests; of those that run over each network, it is the part over RDMA. All other tests pass without one.
set -eu
names=$(for folder in "$@"; do
	awk '
	/^(func|var|type|const) / {
		name = $0
		method = sub(/^func \([^)]*\) */, "", name) ? "." : ""
		sub(/^[a-z]+ /, "", name)
		sub(/[^A-Za-z0-9_].*/, "", name)
		name = method name
		if (name ~ /^Test/)
			tests[++count] = name
	}
	!/^\/\// {
		gsub(/[^A-Za-z0-9_.]+/, " ")
		text[name] = text[name] " " $0
	}
	function reaches(words,    word, part, n, parts, i, j) {
		n = split(words, word, " ")
		for (i = 1; i <= n; i++) {
			parts = split(word[i], part, ".")
			for (j = 1; j <= parts; j++)
				if (j == 1 && part[j] in uses || j > 1 && "." part[j] in uses)
					return 1
		}
		return 0
	}
	END {
		uses["SOFTROCE_ADDR"]
		for (more = 1; more;) {
			more = 0
			for (name in text)
				if (!(name in uses) && reaches(text[name]))
					more = uses[name] = 1
		}
		for (i = 1; i <= count; i++)
			if (tests[i] in uses)
				print tests[i]
	}' "$folder"/*_test.go
done | paste -sd '|' -)
[ -n "$names" ]
echo "^($names)\$/^(verbs|rdma6?)\$"
