#!/usr/bin/env bash
# Says what has changed in the exported API since the last release, of which semantic
# versioning wants to know. Before v1 it may be anything, but it stands in CHANGELOG.md.
set -euo pipefail
cd "$(dirname "$0")/.."
apidiff=golang.org/x/exp/cmd/apidiff@v0.0.0-20261014143641-f0251eb4aa3e
go=${GO:-go}

# The modules that others import.
modules=(. metrics grpcnet rdmaudp)

tags=$(git tag --list 'v[0-9]*')
if [ -z "$tags" ]; then
	echo "There is no release yet to compare with. When one has been tagged, as v0.1.0 say, this"
	echo "compares with it the exported API of:"
	for module in "${modules[@]}"; do
		path=$(cd "$module" && "$go" list -m)
		echo "  $path"
	done
	exit
fi
tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*')

old=$(mktemp -d)
trap 'rm -rf "$old"' EXIT
mkdir "$old/tree"
git archive "$tag" | tar -x -C "$old/tree"
for module in "${modules[@]}"; do
	path=$(cd "$module" && "$go" list -m)
	echo "$path since $tag"
	(cd "$old/tree/$module" && "$go" run "$apidiff" -m -w "$old/exports" "$path")
	(cd "$module" && "$go" run "$apidiff" -m "$old/exports" "$path" 2>&1) | sed '/^Ignoring internal package /d'
done
