package selector

import "fmt"

// maxDepth bounds the nesting of a selector, as written and in its canonical form, so that no input exhausts the stack.
const maxDepth = 1000

// syntaxError is a syntax error with its position.
type syntaxError struct {
	Position int // in bytes, counted from 1
	Reason   string
}

func (e *syntaxError) Error() string { return fmt.Sprintf("at position %d: %s", e.Position, e.Reason) }

const (
	operand   = `a label, has(LABEL), all(), global(), "!" or "("`
	operators = `==, !=, contains, starts with, ends with, in or not in`
)

// parser has a lookahead of one token.
type parser struct {
	lexer lexer
	token token
	depth int
}

func parse(text string) (Node, error) {
	p := &parser{lexer: lexer{input: text}}
	if err := p.advance(); err != nil {
		return nil, err
	}
	if p.token.kind == tokEnd {
		return All{}, nil
	}
	n, err := p.or()
	if err != nil {
		return nil, err
	}
	if p.token.kind != tokEnd {
		return nil, p.expected(`"&&", "||" or the end`)
	}
	if depth(n) > maxDepth {
		return nil, &syntaxError{Position: 1, Reason: fmt.Sprintf("nested deeper than %d levels", maxDepth)}
	}
	return n, nil
}

// depth returns the depth of parentheses of the canonical form.
func depth(n Node) int {
	deepest := 0
	for _, o := range operands(n) {
		deepest = max(deepest, depth(o))
	}
	switch n.(type) {
	case And, Or:
		return deepest + 1
	}
	return deepest
}

func (p *parser) advance() error {
	t, err := p.lexer.next()
	p.token = t
	return err
}

// expected returns the error for an unexpected token.
func (p *parser) expected(what string) error {
	found := "the end"
	if p.token.kind != tokEnd {
		found = fmt.Sprintf("%q", shorten(p.lexer.input[p.token.pos:p.token.end]))
	}
	return &syntaxError{Position: p.token.pos + 1, Reason: fmt.Sprintf("found %s: expected %s", found, what)}
}

// take consumes a token of the given kind.
func (p *parser) take(k kind, what string) (string, error) {
	if p.token.kind != k {
		return "", p.expected(what)
	}
	text := p.token.text
	return text, p.advance()
}

func (p *parser) or() (Node, error) {
	list, err := p.operands(tokOr, p.and)
	if err != nil || len(list) > 1 {
		return Or{Operands: list}, err
	}
	return list[0], nil
}

func (p *parser) and() (Node, error) {
	list, err := p.operands(tokAnd, p.unary)
	if err != nil || len(list) > 1 {
		return And{Operands: list}, err
	}
	return list[0], nil
}

// operands parses one operand with next, and another one after each operator.
func (p *parser) operands(operator kind, next func() (Node, error)) ([]Node, error) {
	var list []Node
	for {
		n, err := next()
		if err != nil {
			return nil, err
		}
		list = append(list, n)
		if p.token.kind != operator {
			return list, nil
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
	}
}

func (p *parser) unary() (Node, error) {
	negated := false
	for p.token.kind == tokNot {
		negated = !negated
		if err := p.advance(); err != nil {
			return nil, err
		}
	}
	n, err := p.primary()
	if err != nil || !negated {
		return n, err
	}
	return negation(n), nil
}

func (p *parser) primary() (Node, error) {
	switch p.token.kind {
	case tokLeftParen:
		return p.group()
	case tokHas:
		return p.has()
	case tokAll:
		return p.call(All{})
	case tokGlobal:
		return p.call(Global{})
	case tokLabel:
		return p.comparison()
	}
	return nil, p.expected(operand)
}

func (p *parser) group() (Node, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, &syntaxError{Position: p.token.pos + 1, Reason: fmt.Sprintf("nested deeper than %d parentheses",
			maxDepth)}
	}
	defer func() { p.depth-- }()
	if err := p.advance(); err != nil {
		return nil, err
	}
	n, err := p.or()
	if err != nil {
		return nil, err
	}
	_, err = p.take(tokRightParen, `"&&", "||" or ")"`)
	return n, err
}

func (p *parser) has() (Node, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	label, err := p.take(tokLabel, "a label")
	if err != nil {
		return nil, err
	}
	_, err = p.take(tokRightParen, `")"`)
	return Has{Label: label}, err
}

// call parses the rest of a function without arguments.
func (p *parser) call(n Node) (Node, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	_, err := p.take(tokRightParen, `")"`)
	return n, err
}

var comparisons = map[kind]Op{
	tokEq: Equal, tokNe: NotEqual, tokContains: Contains, tokStartsWith: StartsWith, tokEndsWith: EndsWith,
}

func (p *parser) comparison() (Node, error) {
	label := p.token.text
	if err := p.advance(); err != nil {
		return nil, err
	}
	operator := p.token.kind
	if operator == tokIn || operator == tokNotIn {
		values, err := p.set()
		return In{Label: label, Values: values, Not: operator == tokNotIn}, err
	}
	op, ok := comparisons[operator]
	if !ok {
		return nil, p.expected(operators)
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	value, err := p.take(tokString, "a string in quotes")
	return Comparison{Label: label, Op: op, Value: value}, err
}

// set parses {"a", "b"}; it may be empty and may end with a comma.
func (p *parser) set() ([]string, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	if _, err := p.take(tokLeftBrace, `"{"`); err != nil {
		return nil, err
	}
	values := []string{}
	for p.token.kind == tokString {
		values = append(values, p.token.text)
		if err := p.advance(); err != nil {
			return nil, err
		}
		if p.token.kind != tokComma {
			break
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
	}
	if _, err := p.take(tokRightBrace, `a string in quotes, "," or "}"`); err != nil {
		return nil, err
	}
	return unique(values), nil
}
