package sysfs

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// HugePages are the huge pages of one size that a NUMA node has.
type HugePages struct {
	Node int
	Size int64 // of a page, in bytes
	// Bytes is how much memory they are, in use or not.
	Bytes int64
}

// ReadHugePages reads nr_hugepages of each NUMA node and page size
// (Documentation/admin-guide/mm/hugetlbpage.rst), by rising node and name. A kernel without
// them has none.
func ReadHugePages(fsys fs.FS) (all []HugePages, err error) {
	files, err := fs.Glob(fsys, nodeDir+"/node*/hugepages/hugepages-*kB/nr_hugepages")
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		var h HugePages
		var kib, pages int64
		text, err := fs.ReadFile(fsys, name)
		if err == nil {
			pages, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		}
		dir := path.Dir(name)
		if err == nil {
			kib, err = strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(path.Base(dir), "hugepages-"), "kB"), 10, 64)
		}
		if err == nil {
			h.Node, err = strconv.Atoi(strings.TrimPrefix(path.Base(path.Dir(path.Dir(dir))), "node"))
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		h.Size = kib << 10
		h.Bytes = h.Size * pages
		all = append(all, h)
	}
	return all, nil
}
