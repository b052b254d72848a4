#include "cli/dashboard/http_request.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/text.h"

namespace tensorcast::dashboard {
namespace {

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("!#$%&'*+-.^_`|~", c);
}

// A value may hold bytes of UTF-8, but no control character but the tab.
bool IsValue(std::string_view value) {
  return std::ranges::none_of(value, [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; });
}

absl::Status ParseTarget(std::string_view target, HttpRequest* request) {
  // Only a path of this server: an absolute address or "*" has no meaning here.
  if (!absl::StartsWith(target, "/")) {
    return absl::InvalidArgumentError("the request's target is not a path; begin the target with /");
  }
  const size_t mark = target.find('?');
  TC_ASSIGN_OR_RETURN(request->path, DecodeUrl(target.substr(0, mark), /*plus=*/false));
  if (mark == std::string_view::npos) return absl::OkStatus();
  for (const std::string_view pair : absl::StrSplit(target.substr(mark + 1), '&', absl::SkipEmpty())) {
    const size_t equals = pair.find('=');
    TC_ASSIGN_OR_RETURN(std::string name, DecodeUrl(pair.substr(0, equals), /*plus=*/true));
    std::string value;
    if (equals != std::string_view::npos) {
      TC_ASSIGN_OR_RETURN(value, DecodeUrl(pair.substr(equals + 1), /*plus=*/true));
    }
    // What is given twice could mean one thing to this server and another to a proxy.
    if (!request->query.try_emplace(name, std::move(value)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the parameter ", name, " is given twice; give it once"));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseHeader(std::string_view line, HttpRequest* request) {
  const size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  // A space before the colon, or at the start (a folded line), is how two servers are made to read one
  // request differently.
  if (colon == std::string_view::npos || name.empty() || !std::ranges::all_of(name, IsNameCharacter)) {
    return absl::InvalidArgumentError("a header line has no name; write NAME: VALUE");
  }
  const std::string_view value = absl::StripAsciiWhitespace(line.substr(colon + 1));
  if (!IsValue(value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header ", name, " has control characters; leave them out"));
  }
  const std::string key = absl::AsciiStrToLower(name);
  const auto [found, added] = request->headers.try_emplace(key, value);
  if (added) return absl::OkStatus();
  // These two decide about access, so there has to be one of each.
  if (key == "host" || key == "origin") {
    return absl::InvalidArgumentError(absl::StrCat("the header ", key, " is given twice; give it once"));
  }
  // Any other header may come in several lines, which together are one list.
  absl::StrAppend(&found->second, key == "cookie" ? "; " : ", ", value);
  return absl::OkStatus();
}

bool Refuse(int status, std::string text, HttpResponse* refusal) {
  *refusal = PlainResponse(status, std::move(text));
  return false;
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  const auto found = headers.find(std::string(name));
  return found == headers.end() ? std::string_view() : found->second;
}

std::string HttpRequest::Cookie(std::string_view name) const {
  // The first cookie of this name counts. The name must be followed by "=" at once, since another cookie's
  // name may begin with it.
  for (std::string_view pair : absl::StrSplit(Header("cookie"), ';')) {
    pair = absl::StripAsciiWhitespace(pair);
    if (absl::ConsumePrefix(&pair, name) && absl::ConsumePrefix(&pair, "=")) return std::string(pair);
  }
  return "";
}

HttpResponse PlainResponse(int status, std::string text) {
  HttpResponse response;
  response.status = status;
  response.content_type = "text/plain; charset=utf-8";
  response.body = std::move(text);
  return response;
}

// The checks go from cheap to expensive: the form of the request line, the version, the method, the length of
// the target. Only then are the target and the headers decoded and copied.
bool ParseHead(std::string_view head, HttpRequest* request, HttpResponse* refusal) {
  // CR LF ends a line; a line feed alone is taken for the same.
  std::vector<std::string_view> lines = absl::StrSplit(head, '\n');
  for (std::string_view& line : lines) absl::ConsumeSuffix(&line, "\r");
  const std::vector<std::string_view> words = absl::StrSplit(lines.front(), ' ');
  if (words.size() != 3 || !IsValue(lines.front())) {
    return Refuse(400,
                  "the request line is malformed; write METHOD PATH HTTP/1.1, and encode spaces in PATH\n",
                  refusal);
  }
  if (words[2] != "HTTP/1.1" && words[2] != "HTTP/1.0") {
    return Refuse(505, "the dashboard does not speak this version of HTTP; use HTTP/1.1\n", refusal);
  }
  if (words[0] != "GET" && words[0] != "HEAD") {
    Refuse(405, "the dashboard is read-only; use GET or HEAD\n", refusal);
    refusal->headers.emplace_back("Allow", "GET, HEAD");
    return false;
  }
  request->head = words[0] == "HEAD";
  if (words[1].size() > kMaxTargetBytes) {
    return Refuse(
        414, absl::StrCat("the address has more than ", kMaxTargetBytes, " bytes; shorten the address\n"),
        refusal);
  }
  absl::Status status = ParseTarget(words[1], request);
  size_t count = 0;
  for (const std::string_view line : lines) {
    if (!status.ok() || line.empty()) break;
    if (count++ == 0) continue;  // the request line
    // The request line counts as one more.
    if (count > kMaxHeaders + 1) {
      return Refuse(431,
                    absl::StrCat("the request has more than ", kMaxHeaders, " headers; send fewer headers\n"),
                    refusal);
    }
    status = ParseHeader(line, request);
  }
  if (!status.ok()) return Refuse(400, absl::StrCat(status.message(), "\n"), refusal);
  // GET and HEAD have no use for a body, and its length is where servers come to read one request
  // differently.
  const std::string_view length = request->Header("content-length");
  if (!request->Header("transfer-encoding").empty() || (!length.empty() && length != "0")) {
    return Refuse(400, "the dashboard accepts no request body; send the request without a body\n", refusal);
  }
  return true;
}

absl::StatusOr<std::string> DecodeUrl(std::string_view text, bool plus) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    // In a query '+' is a space, in a path it is itself.
    if (text[i] == '+' && plus) {
      decoded.push_back(' ');
    } else if (text[i] != '%') {
      decoded.push_back(text[i]);
    } else {
      unsigned int byte = 0;
      const std::string_view digits = text.substr(i + 1, 2);
      const bool hex = digits.size() == 2 &&
                       std::ranges::all_of(digits, [](unsigned char c) { return absl::ascii_isxdigit(c); });
      if (!hex || !absl::SimpleHexAtoi(digits, &byte)) {
        return absl::InvalidArgumentError(
            "the address has a % without two hexadecimal digits; write %25 for a %");
      }
      decoded.push_back(static_cast<char>(byte));
      i += 2;
    }
  }
  // Control characters are looked for after the decoding, since %00 is one, too.
  if (!IsPrintable(decoded)) {
    return absl::InvalidArgumentError(
        "the address is not UTF-8, or has control characters; correct the address");
  }
  return decoded;
}

std::string EncodeUrl(std::string_view text) {
  std::string encoded;
  for (const unsigned char c : text) {
    if (absl::ascii_isalnum(c) || absl::StrContains("-._~/", static_cast<char>(c))) {
      encoded.push_back(static_cast<char>(c));
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", c);
    }
  }
  return encoded;
}

}  // namespace tensorcast::dashboard
