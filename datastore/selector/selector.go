package selector

// Selector is a parsed selector. It is immutable and safe for concurrent use.
type Selector struct {
	root Node
	text string
}

// Parse reads a selector. The empty text selects everything, as all() does. The error is an *Error.
func Parse(text string) (*Selector, error) {
	root, err := parse(text)
	if err != nil {
		return nil, err
	}
	return New(root), nil
}

// New returns a Selector of its parts, for instance of ones whose labels were rewritten.
func New(root Node) *Selector {
	return &Selector{root: root, text: canonical(root)}
}

// Root returns the parts. They must not be changed.
func (s *Selector) Root() Node { return s.root }

// Matches reports whether something with these labels is selected.
func (s *Selector) Matches(labels map[string]string) bool { return s.root.Matches(Map(labels)) }

// MatchesLabels is Matches for labels that are not in one map.
func (s *Selector) MatchesLabels(labels Labels) bool { return s.root.Matches(labels) }

// String gives the canonical text: selectors that are written differently but parse to the same have the same one.
func (s *Selector) String() string { return s.text }

// ID returns the identifier that Calico derives from the canonical text.
func (s *Selector) ID() string { return id(s.text) }
