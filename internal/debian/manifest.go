package debian

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// A directory that has packages has them in Debs, and their hashes in Manifest.
const (
	Debs     = "debs"
	Manifest = "debs.json"
)

// WriteManifest records the hash of every package, by file name.
func WriteManifest(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, Debs, "*.deb"))
	if err != nil {
		return err
	}
	sums := map[string]string{}
	for _, file := range files {
		if sums[filepath.Base(file)], err = SHA256(file); err != nil {
			return err
		}
	}
	return WriteJSON(filepath.Join(dir, Manifest), sums)
}

// Verify compares every package with the manifest.
func Verify(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, Manifest))
	if err != nil {
		return err
	}
	var sums map[string]string
	if err := json.Unmarshal(text, &sums); err != nil {
		return fmt.Errorf("read %s: %w", Manifest, err)
	}
	for name, want := range sums {
		got, err := SHA256(filepath.Join(dir, Debs, name))
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("verify %s: sha256 is %s, want %s", name, got, want)
		}
	}
	return nil
}

// SHA256 is the hash of a file, in hexadecimal digits.
func SHA256(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", fmt.Errorf("hash %s: %w", name, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// WriteJSON writes a file for people to read, too.
func WriteJSON(name string, data any) error {
	text, err := json.MarshalIndent(data, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}
