package cgroupstat

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// Values reads some signals of a group once, as of the whole group: from any file
// system, which may be that of a fake kernel. Dirs are the directories of
// the group there, each as a Tree. What is not told is absent; a group that does not
// exist tells nothing.
func Values(fsys fs.FS, dirs []Tree, want ...Signal) (map[watch.Quantity]float64, error) {
	var s sink
	for _, signal := range want {
		for version, src := range [...]source{1: signalInfos[signal].v1, 2: signalInfos[signal].v2} {
			i := slices.IndexFunc(dirs, func(t Tree) bool {
				return t.Version == version && (src.controller == "" || slices.Contains(t.Controllers, src.controller))
			})
			if i < 0 || src.files == nil {
				continue
			}
			for _, file := range src.files {
				name := dirs[i].Dir + "/" + file
				text, err := fs.ReadFile(fsys, name)
				if kernel.Absent(err) || errors.Is(err, syscall.EOPNOTSUPP) {
					continue
				}
				if err == nil {
					err = src.parserOf(file)(text, &s)
				}
				if err != nil {
					return nil, fmt.Errorf("read /%s: %w", name, err)
				}
			}
			break
		}
	}
	values := map[watch.Quantity]float64{}
	for _, one := range s.to {
		if one.Subject.Part == (watch.Part{}) {
			values[one.Quantity] = one.Value
		}
	}
	return values, nil
}
