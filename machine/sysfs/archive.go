package sysfs

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

func isArchive(data []byte) bool {
	const magicAt = 257
	return bytes.HasPrefix(data, []byte{0x1f, 0x8b}) || bytes.HasPrefix(data, []byte("BZh")) ||
		len(data) > magicAt && bytes.HasPrefix(data[magicAt:], []byte("ustar"))
}

// unpack reads a tar archive, plain or compressed, into memory. It keeps the
// files that Read may ask for.
func unpack(data []byte) (fs.FS, error) {
	var r io.Reader = bytes.NewReader(data)
	switch {
	case bytes.HasPrefix(data, []byte("BZh")):
		r = bzip2.NewReader(r)
	case data[0] == 0x1f:
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("archive: %w", err)
		}
		r = z
	}
	limited := &io.LimitedReader{R: r, N: maxFile}
	u := unpacker{files: map[string]string{}, links: map[string]string{}}
	if err := u.read(tar.NewReader(limited)); err != nil {
		if limited.N <= 0 {
			err = fmt.Errorf("unpacks to more than %d bytes", maxFile)
		}
		return nil, fmt.Errorf("archive: %w", err)
	}
	u.follow()
	return inMemory(u.files)
}

// inMemory makes a file system of files, by their valid paths: the standard library has
// one for zip archives.
func inMemory(files map[string]string) (fs.FS, error) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, text := range files {
		f, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err != nil {
			return nil, err
		}
		if _, err := io.WriteString(f, text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
}

type unpacker struct {
	files map[string]string
	links map[string]string // of cpuN/cpufreq
}

func (u *unpacker) read(r *tar.Reader) error {
	// The files that Read opens, and the links that it passes.
	wanted := regexp.MustCompile(`(^|/)(devices/system/(cpu|node)/.*|devices/cpu_(core|atom|lowpower)/cpus|proc/cpuinfo|proc/sys/kernel/hostname)$`)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if !wanted.MatchString(name) {
			continue
		}
		switch h.Typeflag {
		case tar.TypeReg:
			text, err := content(r)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			u.files[name] = text
		case tar.TypeSymlink:
			if path.Base(name) == "cpufreq" {
				u.links[name] = path.Join(path.Dir(name), h.Linkname)
			}
		}
	}
}

// content reads a file without the zero bytes that pad it.
func content(r io.Reader) (string, error) {
	const most = 16 << 20 // proc/cpuinfo of 2,048 CPUs has some 4 MiB
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return "", err
	}
	if len(data) > most {
		return "", errors.New("too large for a file of /sys or /proc")
	}
	return strings.TrimRight(string(data), "\x00"), nil
}

// follow copies the targets of the links cpuN/cpufreq.
func (u *unpacker) follow() {
	for link, target := range u.links {
		for _, base := range []string{"base_frequency", "cpuinfo_max_freq"} {
			if text, ok := u.files[target+"/"+base]; ok {
				u.files[link+"/"+base] = text
			}
		}
	}
}
