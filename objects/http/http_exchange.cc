#include "objects/http/http_exchange.h"

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace tensorcast::objects {
namespace {

constexpr size_t kMaxBodyBytes = size_t{64} << 20;  // of a reply that is kept in memory
constexpr size_t kMaxHeaderBytes = size_t{256} << 10;

// "bytes 0-9/100" as the first byte and the size of the object; size 0: the server does not know it.
struct ContentRange {
  uint64_t first = 0;
  uint64_t object_bytes = 0;
};
std::optional<ContentRange> ParseContentRange(std::string_view text) {
  ContentRange range;
  if (!absl::ConsumePrefix(&text, "bytes ")) return std::nullopt;
  const std::pair<std::string_view, std::string_view> parts = absl::StrSplit(text, absl::MaxSplits('/', 1));
  if (!absl::SimpleAtoi(parts.first.substr(0, parts.first.find('-')), &range.first)) return std::nullopt;
  if (parts.second != "*" && !absl::SimpleAtoi(parts.second, &range.object_bytes)) return std::nullopt;
  return range;
}

}  // namespace

absl::Status HttpExchange::Finish() {
  if (!BringsRange()) return absl::OkStatus();
  // AddBody was not called for an empty body, so the headers are checked here. A short body is not an error
  // of libcurl where the server's length agrees with it.
  if (body_bytes_ == 0) TC_RETURN_IF_ERROR(CheckRange());
  if (done_ == request_.read->destination.size()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the server sent ", done_, " of ", request_.read->destination.size(), " bytes"));
}

// A status line begins a reply anew: after a 100 Continue, or where a proxy answers first, the headers so far
// belong to another reply.
bool HttpExchange::AddHeader(std::string_view line) {
  received_ += line.size();
  header_bytes_ += line.size();
  if (header_bytes_ > kMaxHeaderBytes) {
    refusal_ =
        absl::UnavailableError(absl::StrCat(request_.subject, ": the server's reply has more than ",
                                            kMaxHeaderBytes >> 10, " KiB of headers; check the endpoint"));
    return false;
  }
  line = absl::StripAsciiWhitespace(line);
  if (absl::StartsWith(line, "HTTP/")) {  // also after a 100 Continue
    reply_.headers.clear();
    const std::vector<std::string_view> words = absl::StrSplit(line, ' ');
    if (words.size() < 2 || !absl::SimpleAtoi(words[1], &reply_.status)) reply_.status = 0;
  } else if (const size_t colon = line.find(':'); colon != line.npos) {
    reply_.headers.emplace_back(absl::AsciiStrToLower(line.substr(0, colon)),
                                absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return true;
}

bool HttpExchange::AddBody(std::string_view data) {
  received_ += data.size();
  if (BringsRange()) {
    // The headers are complete once a body begins. They are checked before its first byte goes to the
    // caller's memory.
    if (body_bytes_ == 0) refusal_ = CheckRange();
    // libcurl delivers pieces, so the destination is bounded here: a server that sends more than it announced
    // must not write behind it.
    const HostSpan rest = request_.read->destination.subspan(done_);
    if (refusal_.ok() && data.size() > rest.size()) {
      refusal_ = Changed("the reply has more bytes than the range");
    }
    if (!refusal_.ok()) return false;
    std::memcpy(rest.data(), data.data(), data.size());
    done_ += data.size();
  } else {
    if (reply_.body.size() + data.size() > kMaxBodyBytes) {
      refusal_ = absl::ResourceExhaustedError(absl::StrCat(request_.subject, ": the reply has more than ",
                                                           kMaxBodyBytes, " bytes; check the endpoint"));
      return false;
    }
    reply_.body.append(data);
  }
  body_bytes_ += data.size();
  return true;
}

// Whether the body is the asked range of the asked version. Servers exist that ignore If-Match, and that
// ignore Range, so nothing is taken for granted.
absl::Status HttpExchange::CheckRange() {
  const RangedRead& read = *request_.read;
  const std::string_view etag = reply_.Header("etag");
  if (!read.etag.empty() && !etag.empty() && etag != read.etag) {
    return Changed(absl::StrCat("the ETag was ", read.etag, " and is ", etag));
  }
  ContentRange range;
  const std::string_view range_of_reply = reply_.Header("content-range");
  // rclone answers a range with 200, and says in Content-Range which bytes it sends.
  const bool partial = reply_.status == 206 || !range_of_reply.empty();
  if (partial) {
    const auto parsed = ParseContentRange(range_of_reply);
    if (!parsed.has_value()) return NoRanges("a part without a valid Content-Range");
    range = *parsed;
  } else if (!absl::SimpleAtoi(reply_.Header("content-length"), &range.object_bytes)) {
    return NoRanges("the whole object, without its size");
  }
  if (range.object_bytes != 0 && range.object_bytes != read.object_bytes) {
    return Changed(absl::StrCat("the size was ", read.object_bytes, " bytes and is ", range.object_bytes));
  }
  // A whole object in place of a range is the range only where it is all of it. Such a reply begins at the
  // first byte, also after an attempt that has read a part.
  const bool whole = !partial && read.destination.size() != read.object_bytes;
  if (!partial && !whole) done_ = 0;
  if (whole || range.first != read.offset + done_) return NoRanges("other bytes than the range");
  return absl::OkStatus();
}

absl::Status HttpExchange::Changed(std::string_view how) const {
  return absl::FailedPreconditionError(absl::StrCat(
      request_.subject, ": the object changed after it was opened: ", how, "; import the model again"));
}
absl::Status HttpExchange::NoRanges(std::string_view what) const {
  return absl::DataLossError(absl::StrCat(request_.subject,
                                          ": the server answers a request for a range with ", what,
                                          "; download the object and import the file"));
}

}  // namespace tensorcast::objects
