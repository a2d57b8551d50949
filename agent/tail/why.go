package tail

import "strings"

// IncludedBy is the first include pattern that matches a cleaned absolute path; "" when none does.
func (s *Scanner) IncludedBy(path string) string { return firstMatch(s.include, path) }

// ExcludedBy is the first exclude pattern that matches a cleaned absolute path; "" when none does.
func (s *Scanner) ExcludedBy(path string) string { return firstMatch(s.exclude, path) }

func firstMatch(patterns []*Pattern, path string) string {
	for _, p := range patterns {
		if p.Match(path) {
			return p.text
		}
	}
	return ""
}

// Skips says that a file is left out by more than its name.
func (s *Scanner) Skips(path string, info Info) bool { return s.skip != nil && s.skip(path, info) }

// Nearest is the include pattern that comes nearest to matching a path: the one that matches most of its elements from the first on, and of
// several the one whose next element looks most like the path's.
func (s *Scanner) Nearest(path string) string {
	best, most := "", -1.0
	elements := strings.Split(path, "/")
	for _, p := range s.include {
		for _, alt := range p.alts {
			if n := nearness(alt, elements); n > most {
				best, most = p.text, n
			}
		}
	}
	return best
}

// nearness is how many elements match before the first that does not, and how much of that one is the same at either end.
func nearness(pattern, path []string) float64 {
	n := 0
	for n < len(pattern) && n < len(path) && pattern[n] != "**" && matchName(pattern[n], path[n]) {
		n++
	}
	if n == len(pattern) || n == len(path) {
		return float64(n)
	}
	a, b := pattern[n], path[n]
	same := 0
	for same < len(a) && same < len(b) && a[same] == b[same] {
		same++
	}
	for end := 1; end <= min(len(a), len(b))-same && a[len(a)-end] == b[len(b)-end]; end++ {
		same++
	}
	return float64(n) + float64(same)/float64(max(len(a), len(b))+1)
}
