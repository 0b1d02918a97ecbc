package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/debian"
	"berth.dev/berth/internal/vmtest"
)

func TestMajorMinor(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"6.12.95-1~bpo12+1": "6.12", "7.3": "7.3", "7": "7"} {
		if got := majorMinor(version); got != want {
			t.Errorf("majorMinor(%s) = %s, want %s", version, got, want)
		}
	}
}

func TestParseStatus(t *testing.T) {
	t.Parallel()
	text := "Package: a\nStatus: install ok installed\nVersion: 1:2-3\n\nPackage: b\nDescription: x\n Version: 9\nVersion: 4\n"
	// A line that goes on starts with a blank.
	if diff := cmp.Diff([]string{"a 1:2-3", "b 4"}, parseStatus(text)); diff != "" {
		t.Errorf("parseStatus (-want +got):\n%s", diff)
	}
}

func TestCompleteDisk(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		damage func(image, manifest string) error
		intact bool
	}{
		{"intact", func(string, string) error { return nil }, true},
		{"altered image", func(image, _ string) error { return os.WriteFile(image, []byte("other"), 0o644) }, false},
		{"missing image", func(image, _ string) error { return os.Remove(image) }, false},
		{"missing manifest", func(_, manifest string) error { return os.Remove(manifest) }, false},
		{"made with other options", func(image, manifest string) error {
			sum, err := debian.SHA256(image)
			return errors.Join(err, debian.WriteJSON(manifest, diskContent{SHA256: sum, Options: diskOptions()[1:]}))
		}, false},
		{"malformed manifest", func(_, manifest string) error { return os.WriteFile(manifest, []byte("{"), 0o644) }, false},
	} {
		dir := t.TempDir()
		image, manifest := filepath.Join(dir, vmtest.DiskFile), filepath.Join(dir, diskManifest)
		if err := os.WriteFile(image, []byte("image"), 0o644); err != nil {
			t.Fatal(err)
		}
		sum, err := debian.SHA256(image)
		if err != nil {
			t.Fatal(err)
		}
		if err := debian.WriteJSON(manifest, diskContent{SHA256: sum, Options: diskOptions()}); err != nil {
			t.Fatal(err)
		}
		if err := tc.damage(image, manifest); err != nil {
			t.Fatal(err)
		}
		if err := completeDisk(dir); (err == nil) != tc.intact {
			t.Errorf("%s: completeDisk = %v", tc.name, err)
		}
	}
}
