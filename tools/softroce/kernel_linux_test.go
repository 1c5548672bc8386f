package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// archive stands for apt-get and apt-cache. It has a kernel for each suite: one package of it in the old layout, and
// in testing four in the new.
const archive = `#!/bin/sh
suites=system
for word; do
	case $word in
	Dir::Etc::SourceList=*) suites=$(cut -d' ' -f5 "${word#*=}") ;;
	indextargets | update | download | depends | madison) command=$word ;;
	esac
	last=$word
done
release_of() { case $1 in system) echo 6.1.0-9-amd64 ;; stable) echo 6.12.1+deb13-amd64 ;; testing) echo 7.2.1+deb14-amd64 ;; esac; }
packages_of() {
	release=$(release_of $1)
	[ -z "$release" ] || echo linux-image-$release
	[ $1 != testing ] || for part in base binary modules; do echo linux-$part-$release; done
}
pack() { # PACKAGE FILE: its text is the package
	mkdir -p tree/DEBIAN "tree/$(dirname $2)"
	echo $1 >tree/$2
	printf 'Package: %s\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\nDescription: a\n' $1 >tree/DEBIAN/control
	dpkg-deb -b tree $1.deb && rm -r tree
}
case $command in
indextargets) echo "http://archive/debian/ Debian"; echo "http://archive/backports/ Debian Backports" ;;
madison)
	for suite in $suites; do
		[ -z "$(release_of $suite)" ] || echo "linux-image-amd64 | $(release_of $suite) | http://archive/debian $suite/main amd64 Packages"
	done ;;
depends)
	echo linux-base
	for suite in $suites; do
		packages=$(packages_of $suite)
		[ -z "$packages" ] || case " $(echo $packages) linux-image-amd64 linux-image-arm64 " in *" $last "*) echo "$packages"; found=yes ;; esac
	done
	[ -n "$found" ] || { echo E: No packages found >&2; exit 100; } ;;
download)
	for package; do
		case $package in
		linux-image-7*) pack $package usr/share/doc/$package ;;
		linux-image-*) release=${package#linux-image-}; pack $package boot/vmlinuz-$release; pack modules lib/modules/$release/modules.order ;;
		linux-base-*) pack $package usr/lib/modules/${package#linux-base-}/modules.builtin ;;
		linux-binary-*) pack $package usr/lib/modules/${package#linux-binary-}/vmlinuz ;;
		linux-modules-*) pack $package usr/lib/modules/${package#linux-modules-}/modules.order ;;
		esac
	done ;;
esac
`

// useArchive puts archive before apt's programs.
func useArchive(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip(err)
	}
	bin := t.TempDir()
	writeFile(t, bin, "apt-get", []byte(archive))
	writeFile(t, bin, "apt-cache", []byte(archive))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH")+":/usr/sbin:/sbin")
	t.Setenv("TMPDIR", t.TempDir())
}

func TestKernelByName(t *testing.T) {
	useArchive(t)
	for _, tt := range []struct{ name, release, vmlinuz string }{
		{"", "6.1.0-9-amd64", "linux-image-6.1.0-9-amd64"},
		{"stable", "6.12.1+deb13-amd64", "linux-image-6.12.1+deb13-amd64"},
		{"6.12.1+deb13-amd64", "6.12.1+deb13-amd64", "linux-image-6.12.1+deb13-amd64"},
		{"testing", "7.2.1+deb14-amd64", "linux-binary-7.2.1+deb14-amd64"},
	} {
		dir := t.TempDir()
		release, err := getKernel(t.Context(), machines["amd64"], tt.name, []byte("ID=debian\n"), dir)
		if err != nil || release != tt.release {
			t.Errorf("%q: release %q, %v, want %q", tt.name, release, err, tt.release)
			continue
		}
		wantFile(t, filepath.Join(dir, "vmlinuz"), tt.vmlinuz)
		left, _ := filepath.Glob(filepath.Join(dir, "*"))
		if _, err := os.Stat(filepath.Join(dir, "lib/modules", release, "modules.order")); err != nil || len(left) != 3 {
			t.Errorf("%q: %v, and the folder has %q", tt.name, err, left)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*")); len(left) > 0 {
		t.Errorf("lists are left behind: %q", left)
	}
}

func TestKernelThatCannotBeHadNamesThoseThatCan(t *testing.T) {
	useArchive(t)
	for _, name := range []string{"nosuch", "6.12.99+deb13-amd64"} {
		_, err := getKernel(t.Context(), machines["amd64"], name, nil, t.TempDir())
		if want := "stable 6.12.1+deb13-amd64\ntesting 7.2.1+deb14-amd64"; err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want an error that ends in %q", name, err, want)
		}
	}
	// The system has no archive of security updates.
	if _, err := getKernel(t.Context(), machines["amd64"], "stable-security", nil, t.TempDir()); err == nil || !strings.Contains(err.Error(), "apt's sources") {
		t.Errorf("a suite of an archive that the system does not use: %v", err)
	}
}
