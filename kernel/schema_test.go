package kernel

import "testing"

// A line of schemata means the same however the kernel pads it; what is offline makes no
// difference.
func TestSchema(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, value string
		same        bool
	}{
		{"    L3:0=00f;1=7ff\n    MB:0= 100;1=  50\n", "L3:0=f;1=7ff", true},
		{"    L3:0=00f;1=7ff\n    MB:0= 100;1=  50\n", "MB:0=100;1=50", true},
		{"MB:0=100", "MB:0=256", false}, // decimal: 0x100 is 256
		{"L3:0=f", "L3:0=f;1=3", true},  // cache 1 is offline
		{"L3:0=f;1=3", "L3:0=f", true},
		{"L3:0=f", "L3:0=e", false},
		{"L3:0=f", "L3CODE:0=f", false},
		{"L3:1=f", "L3:0=f", false}, // nothing in common
		{"L3:0=x", "L3:0=f", false},
	} {
		s := Step{Value: c.value, Format: Schema}
		if got := same(Schema, s.line(c.text), c.value); got != c.same {
			t.Errorf("%q shows %q: %v, want %v", c.text, c.value, got, c.same)
		}
	}
	if got := schemaOnline("L3:0=00f;1=7ff;2=1", "L3:0=1;2=1"); got != "L3:0=00f;2=1" {
		t.Errorf("without what is offline: %q", got)
	}
}
