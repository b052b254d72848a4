// Reads the XML that S3 and STS answer with: elements and text, whole documents in memory. Attributes,
// comments and prefixes of namespaces are dropped; a document type is refused, so no entity can expand. A
// pure function; thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast::objects {

struct XmlElement {
  std::string name;
  std::string text;  // of itself, without its children's
  std::vector<XmlElement> children;

  // Of the first child of that name; empty: there is none.
  std::string_view TextOf(std::string_view child) const;
};

// The root element. INVALID_ARGUMENT for a document that is not well-formed, or is nested deeper than theirs.
absl::StatusOr<XmlElement> ParseXml(std::string_view document);

}  // namespace tensorcast::objects
