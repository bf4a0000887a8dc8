package footprint

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestCleanParts(t *testing.T) {
	const clean, changed = "Rss: 8 kB\nAnonymous:             0 kB\n", "Rss: 8 kB\nAnonymous:             4 kB\n"
	for text, want := range map[string]uintptr{
		"00400000-022b2000 r-xp 00000000 fe:01 1234                  /usr/bin/manxd\n" + clean:           0x1eb2000,
		"022b2000-045ef000 r--p 01eb2000 fe:01 1234                  /usr/bin/manxd\n" + clean:           0x233d000,
		"022b2000-045ef000 r--p 01eb2000 fe:01 1234                  /usr/bin/manxd\n" + changed:         0,
		"022b2000-045ef000 r--p 01eb2000 fe:01 1234                  /usr/bin/manxd\n":                   0,
		"045ef000-046ce000 rw-p 041ef000 fe:01 1234                  /usr/bin/manxd\n" + clean:           0,
		"00400000-022b2000 r-xp 00000000 fe:01 1234                  /usr/bin/manxd (deleted)\n" + clean: 0x1eb2000,
		"7f0000000000-7f0000001000 r-xp 00000000 fe:01 1234                  /lib/other\n" + clean:       0,
		"7f0000000000-7f0000001000 r--p 00000000 00:00 0\n" + clean:                                      0,
		"2ccd33c00000-2ccd3b000000 rw-p 00000000 00:00 0 \n" + clean:                                     0,
		"x-y r-xp 00000000 fe:01 1234 /usr/bin/manxd\n" + clean:                                          0,
		clean: 0,
		"":    0,
	} {
		exe := "/usr/bin/manxd"
		if strings.Contains(text, "(deleted)") { // as /proc/self/exe has it, too
			exe += " (deleted)"
		}
		var sizes []uintptr
		for _, p := range cleanParts(strings.NewReader(text), exe) {
			sizes = append(sizes, p.size)
		}
		if want == 0 && sizes != nil || want != 0 && !slices.Equal(sizes, []uintptr{want}) {
			t.Errorf("%q: %x", text, sizes)
		}
	}
}

// The program continues with less of its file in memory.
func TestForgetProgram(t *testing.T) {
	before := resident(t)
	forgetProgram()
	after := resident(t)
	if after >= before {
		t.Errorf("%d kB of the program are in memory, %d before", after, before)
	}
}

// resident returns the size of the program's file in the memory of this process, in kB.
func resident(t *testing.T) (sum int) {
	t.Helper()
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case strings.Contains(fields[0], "-"):
			inside = strings.HasSuffix(strings.TrimSuffix(line, "\n"), " "+exe)
		case inside && fields[0] == "Rss:":
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}
