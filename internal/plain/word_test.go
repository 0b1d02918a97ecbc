package plain

import "testing"

type small uint8

func TestWords(t *testing.T) {
	t.Parallel()
	words := []string{"none", "some"}
	for i, want := range []string{"none", "some", "unknown(2)"} {
		if got := Word(words, small(i)); got != want {
			t.Errorf("%d is %q, want %q", i, got, want)
		}
		text, err := MarshalWord(words, small(i))
		if (err == nil) != (i < 2) || err == nil && string(text) != want {
			t.Errorf("%d as text: %q, %v", i, text, err)
		}
		var back small
		if err := UnmarshalWord(words, []byte(want), &back); (err == nil) != (i < 2) || err == nil && int(back) != i {
			t.Errorf("%q read: %d, %v", want, back, err)
		}
	}
	if got := Word(words, -1); got != "unknown(-1)" {
		t.Errorf("-1 is %q", got)
	}
	if _, err := MarshalWord(words, -1); err == nil {
		t.Error("-1 as text: no error")
	}
}
