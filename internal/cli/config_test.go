package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/internal/golden"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	const example = "../../examples/nodeconfig.yaml"
	in := func(name string) string { return filepath.Join("testdata", "config", name) }
	for name, tt := range map[string]struct {
		args []string
		code int
	}{
		"check":       {[]string{"check", "--anywhere", example, in("new.yaml")}, exitOK},
		"check-bad":   {[]string{"check", "--anywhere", example, in("bad.yaml"), in("form.yaml")}, exitInvalid},
		"check-json":  {[]string{"check", "--anywhere", "-o", "json", example, in("bad.yaml"), in("form.yaml")}, exitInvalid},
		"diff":        {[]string{"diff", example, in("new.yaml")}, exitDiffers},
		"diff-json":   {[]string{"diff", "-o", "json", example, in("new.yaml")}, exitDiffers},
		"diff-one":    {[]string{"diff", in("new.yaml")}, exitDiffers},
		"diff-itself": {[]string{"diff", example, example}, exitOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, errs, code := berth(t, append([]string{"config"}, tt.args...)...)
			if code != tt.code || errs != "" {
				t.Errorf("status %d, want %d: %s", code, tt.code, errs)
			}
			golden.Check(t, "testdata/config/"+name+".txt", out)
		})
	}
}

func TestConfigRefuses(t *testing.T) {
	t.Parallel()
	bad := filepath.Join("testdata", "config", "bad.yaml")
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no verb":          {nil, exitUsage, "check, preview, apply, history, rollback or diff is needed"},
		"unknown verb":     {[]string{"chek"}, exitUsage, `unknown command "chek"; did you mean "check"?`},
		"check of nothing": {[]string{"check"}, exitUsage, "0 files named"},
		"diff of three":    {[]string{"diff", "a", "b", "c"}, exitUsage, "3 files named"},
		"output":           {[]string{"check", "-o", "yaml", "a"}, exitUsage, "it is one of text, json"},
		"check, absent":    {[]string{"check", "--anywhere", bad, "absent.yaml"}, exitError, "absent.yaml: no such file"},
		"diff, absent":     {[]string{"diff", "absent.yaml"}, exitError, "absent.yaml: no such file"},
		"diff, invalid":    {[]string{"diff", bad}, exitError, "bad.yaml:10: agent.rescan: 10ms is less than 1s"},
	} {
		_, errs, code := berth(t, append([]string{"config"}, tt.args...)...)
		if code != tt.code || !strings.Contains(errs, tt.want) {
			t.Errorf("%s: status %d, %q; want %d, %q", name, code, errs, tt.code, tt.want)
		}
	}
}
