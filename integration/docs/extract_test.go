package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// block is a fenced block of a document.
type block struct {
	where    string // file:line of its first line
	language string
	text     string
}

// command is a command in the documentation.
type command struct {
	where string
	text  string
	whole bool   // the command is complete: in a sentence it may end before its arguments
	shows string // the output that the page shows, if it does
}

// languages are the permitted languages of blocks. A block without a language would hide its commands from these tests.
var languages = []string{"sh", "console", "text", "ini", "json", "yaml", "go"}

// documents are those at the root and all pages below docs/.
func documents(t *testing.T) []string {
	t.Helper()
	files := []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "MAINTAINERS.md"}
	for _, pattern := range []string{"docs/*.md", "docs/decisions/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			files = append(files, strings.TrimPrefix(f, root+"/"))
		}
	}
	if len(files) < 20 {
		t.Fatalf("only %d documents: %q", len(files), files)
	}
	return files
}

// split returns the fenced blocks of a document and its sentences, with fenced lines empty.
func split(t *testing.T, file string) (blocks []block, sentences []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for i, line := range strings.Split(string(text), "\n") {
		fence, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isFence && inside:
			inside = false
		case isFence:
			inside = true
			blocks = append(blocks, block{where: fmt.Sprintf("%s:%d", file, i+2), language: fence})
		case inside:
			blocks[len(blocks)-1].text += line + "\n"
		default:
			sentences = append(sentences, line)
			continue
		}
		sentences = append(sentences, "")
	}
	if inside {
		t.Errorf("%s: the last block has no end", file)
	}
	return blocks, sentences
}

// commands returns the commands of a block: the lines of sh, joined where a line ends in a backslash, and a block that
// begins or ends with a loop as a whole; of console the lines after the prompt "$ ".
func (b block) commands() (list []command) {
	text := strings.ReplaceAll(b.text, "\\\n", " ")
	whole := strings.TrimSpace(text)
	if b.language == "sh" && (strings.HasPrefix(whole, "for ") || strings.HasSuffix(whole, "\ndone")) {
		return []command{{where: b.where, text: whole, whole: true}}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		prompted, isPrompted := strings.CutPrefix(line, "$ ")
		switch {
		case b.language == "console" && isPrompted:
			list = append(list, command{where: b.where, text: prompted, whole: true})
		case b.language == "console" && len(list) > 0:
			list[len(list)-1].shows += line + "\n"
		case b.language == "sh" && line != "" && !strings.HasPrefix(line, "#"):
			list = append(list, command{where: b.where, text: line, whole: true})
		}
	}
	return list
}

var shown = regexp.MustCompile(`^((sudo )?(manxctl|manxd|manx-cni|make|go|helm|kubectl) |BENCH=)`)

// inSentences are the commands between back quotes. A paragraph or a row of a table begins with a sentence.
func inSentences(file string, lines []string) (list []command) {
	inside, text := false, ""
	for i, line := range lines {
		if line == "" || strings.HasPrefix(line, "|") {
			inside, text = false, ""
		}
		for j, part := range strings.Split(strings.ReplaceAll(line, `\|`, "|"), "`") {
			if j > 0 {
				if inside && shown.MatchString(text) {
					list = append(list, command{where: fmt.Sprintf("%s:%d", file, i+1), text: text})
				}
				inside, text = !inside, ""
			}
			text += part
		}
		text += " " // a command may go on in the next line
	}
	return list
}

// inHelp are the examples of manxctl and all its commands.
func inHelp(t *testing.T, manxctl string, words ...string) (list []command) {
	t.Helper()
	out, err := exec.Command(manxctl, append(slices.Clone(words), "--help")...).CombinedOutput()
	if err != nil {
		t.Fatalf("manxctl %s --help: %v\n%s", strings.Join(words, " "), err, out)
	}
	for line := range strings.Lines(section(string(out), "Examples:\n")) {
		list = append(list, command{
			where: "manxctl " + strings.Join(words, " ") + " --help", text: strings.TrimSpace(line), whole: true})
	}
	for line := range strings.Lines(section(string(out), "Available Commands:\n")) {
		if name := strings.Fields(line)[0]; name != "completion" && name != "help" {
			list = append(list, inHelp(t, manxctl, append(slices.Clone(words), name)...)...)
		}
	}
	return list
}

// section is the text below a heading of --help, up to the next empty line.
func section(help, heading string) string {
	_, rest, _ := strings.Cut(help, heading)
	text, _, _ := strings.Cut(rest, "\n\n")
	return text
}

// all are the commands of the documents and of --help.
func all(t *testing.T) (list []command) {
	t.Helper()
	for _, file := range documents(t) {
		blocks, sentences := split(t, file)
		for _, b := range blocks {
			list = append(list, b.commands()...)
		}
		list = append(list, inSentences(file, sentences)...)
	}
	list = append(list, inHelp(t, program(t, "manxctl"))...)
	if len(list) < 200 {
		t.Fatalf("only %d commands", len(list))
	}
	return list
}

func program(t *testing.T, name string) string {
	t.Helper()
	bin := os.Getenv("MANX_BIN")
	if bin == "" {
		bin = root + "/bin"
	}
	path, err := filepath.Abs(filepath.Join(bin, name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Skip("run `make build`:", err)
	}
	return path
}

// Each block names its language, and sh blocks are scripts that a shell can read.
func TestBlocks(t *testing.T) {
	for _, file := range documents(t) {
		blocks, sentences := split(t, file)
		for _, b := range blocks {
			if !slices.Contains(languages, b.language) {
				t.Errorf("%s: language %q, want one of %q", b.where, b.language, languages)
			}
			if b.language != "sh" {
				continue
			}
			shell := exec.Command("bash", "-n")
			shell.Stdin = strings.NewReader(b.text)
			if out, err := shell.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", b.where, err, out)
			}
		}
		for i, line := range sentences {
			if strings.HasPrefix(line, "    ") && (i == 0 || sentences[i-1] == "") {
				t.Errorf("%s:%d: an indented block: put it between ``` and a language", file, i+1)
			}
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]*)\)`)

// Links between documents lead to files, and to headings that exist.
func TestLinks(t *testing.T) {
	count := 0
	for _, file := range documents(t) {
		_, sentences := split(t, file)
		for _, found := range link.FindAllStringSubmatch(strings.Join(sentences, "\n"), -1) {
			target, anchor, _ := strings.Cut(found[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			count++
			to := file
			if target != "" {
				to = filepath.Join(filepath.Dir(file), target)
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s: %s: %v", file, found[1], err)
			} else if anchor != "" && !slices.Contains(anchors(t, to), anchor) {
				t.Errorf("%s: %s: no such heading; there are %q", file, found[1], anchors(t, to))
			}
		}
	}
	if count < 50 {
		t.Errorf("only %d links", count)
	}
}

var notInAnchors = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// anchors are the headings of a document as GitHub names them.
func anchors(t *testing.T, file string) (list []string) {
	t.Helper()
	_, sentences := split(t, file)
	for _, line := range sentences {
		if heading := strings.TrimLeft(line, "#"); heading != line {
			name := notInAnchors.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			list = append(list, strings.ReplaceAll(name, " ", "-"))
		}
	}
	return list
}
