package traffic

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"berth.dev/berth/kernel"
)

// RenewLimits has what a control group may send and receive be by programs of this build of Berth's,
// where it is by those of another, which an upgrade leaves, or through other devices of the same names
// than are there now. It writes again what the files show: there is nothing to undo.
func RenewLimits(root *kernel.Root, group string) error {
	return errors.Join(rewrite(root, LimitFile(group)), rewrite(root, path.Join(group, togetherFile)))
}

// RenewClasses is RenewLimits of the classes below a directory of EDT: to write one renews all.
func RenewClasses(root *kernel.Root, dir string) error {
	classes, err := fs.ReadDir(root.FS(), dir)
	if err != nil || len(classes) == 0 {
		return kernel.IgnoreAbsent(err)
	}
	return rewrite(root, path.Join(dir, classes[0].Name()))
}

func rewrite(root *kernel.Root, name string) error {
	text, err := fs.ReadFile(root.FS(), name)
	if err == nil && strings.TrimSpace(string(text)) != none {
		err = root.WriteFile(name, string(text))
	}
	if err = kernel.IgnoreAbsent(err); err != nil {
		return fmt.Errorf("renew the program of Berth's: %w", err)
	}
	return nil
}
