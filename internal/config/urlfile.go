package config

import "strings"

// maxURLFileBytes bounds a file that holds a URL.
const maxURLFileBytes = 64 << 10

// urlFile reads the URL of a section ("postgres", "redis") from its url_file,
// if one is set.
func (l *loader) urlFile(section string, to *string, file string) {
	if file == "" {
		return
	}
	urlKey, fileKey := section+".url", section+".url_file"
	if *to != "" {
		l.faults.addf(urlKey, "%s is set too, by %s; set only one of them", fileKey, l.origins.Of(fileKey))
		return
	}
	b, err := readLimited(file, maxURLFileBytes)
	if err != nil {
		l.faults.addf(fileKey, "%v", err)
		return
	}
	u := strings.TrimSpace(string(b))
	switch {
	case u == "":
		l.faults.addf(fileKey, "%s is empty", file)
	case strings.ContainsAny(u, "\r\n"):
		l.faults.addf(fileKey, "%s must hold one line, the URL", file)
	default:
		*to = u
		l.origins.set(urlKey, Origin{SourceURLFile, file})
	}
}
