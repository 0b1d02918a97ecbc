package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const (
	debsDir      = "debs"
	manifestFile = "debs.json"
)

// writeManifest records the hash of every package, by file name.
func writeManifest(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, debsDir, "*.deb"))
	if err != nil {
		return err
	}
	sums := map[string]string{}
	for _, file := range files {
		if sums[filepath.Base(file)], err = sha256Of(file); err != nil {
			return err
		}
	}
	return writeJSON(filepath.Join(dir, manifestFile), sums)
}

// verify compares every package with the manifest.
func verify(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil {
		return err
	}
	var sums map[string]string
	if err := json.Unmarshal(text, &sums); err != nil {
		return fmt.Errorf("read %s: %w", manifestFile, err)
	}
	for name, want := range sums {
		got, err := sha256Of(filepath.Join(dir, debsDir, name))
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("verify %s: sha256 is %s, want %s", name, got, want)
		}
	}
	return nil
}

func sha256Of(name string) (string, error) {
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

func writeJSON(name string, data any) error {
	text, err := json.MarshalIndent(data, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}
