#include "objects/http/xml.h"

#include <expat.h>

#include <algorithm>
#include <memory>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace tensorcast::objects {
namespace {

// S3's and STS's documents have about four levels.
constexpr size_t kMaxDepth = 16;

// Builds the tree below an element that stands for the document.
struct Builder {
  XML_Parser parser;
  XmlElement document;
  std::vector<XmlElement*> open = {&document};

  static void OnStart(void* self, const XML_Char* name, const XML_Char** /*attributes*/) {
    auto& builder = *static_cast<Builder*>(self);
    // Not resumable, so ParseXml ends with an error and drops the tree.
    if (builder.open.size() > kMaxDepth) {
      XML_StopParser(builder.parser, XML_FALSE);
      return;
    }
    const std::string_view qualified = name;
    const size_t colon = qualified.find(':');
    std::vector<XmlElement>& siblings = builder.open.back()->children;
    // The siblings before it are closed: nothing points into them when they move.
    siblings.push_back(
        {.name = std::string(colon == qualified.npos ? qualified : qualified.substr(colon + 1))});
    builder.open.push_back(&siblings.back());
  }
  static void OnEnd(void* self, const XML_Char* /*name*/) { static_cast<Builder*>(self)->open.pop_back(); }
  static void OnText(void* self, const XML_Char* text, int size) {
    static_cast<Builder*>(self)->open.back()->text.append(text, static_cast<size_t>(size));
  }
  static void OnDoctype(void* self, const XML_Char*, const XML_Char*, const XML_Char*, int) {
    XML_StopParser(static_cast<Builder*>(self)->parser, XML_FALSE);
  }
};

}  // namespace

std::string_view XmlElement::TextOf(std::string_view child) const {
  const auto found = std::ranges::find(children, child, &XmlElement::name);
  return found == children.end() ? std::string_view() : found->text;
}

absl::StatusOr<XmlElement> ParseXml(std::string_view document) {
  const std::unique_ptr<std::remove_pointer_t<XML_Parser>, void (*)(XML_Parser)> parser(
      XML_ParserCreate(nullptr), XML_ParserFree);
  Builder builder{.parser = parser.get()};
  XML_SetUserData(parser.get(), &builder);
  XML_SetElementHandler(parser.get(), &Builder::OnStart, &Builder::OnEnd);
  XML_SetCharacterDataHandler(parser.get(), &Builder::OnText);
  XML_SetStartDoctypeDeclHandler(parser.get(), &Builder::OnDoctype);
  // expat counts in int. HttpExchange keeps far smaller bodies.
  if (document.size() > (size_t{1} << 30)) {
    return absl::InvalidArgumentError("parse XML: the document is too large");
  }
  if (XML_Parse(parser.get(), document.data(), static_cast<int>(document.size()), XML_TRUE) !=
      XML_STATUS_OK) {
    return absl::InvalidArgumentError(
        absl::StrCat("parse XML: ", XML_ErrorString(XML_GetErrorCode(parser.get())), " in line ",
                     XML_GetCurrentLineNumber(parser.get())));
  }
  return std::move(builder.document.children.front());
}

}  // namespace tensorcast::objects
