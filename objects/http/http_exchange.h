// Receives the reply of one attempt of an HTTP request: the headers and the body. The body of a ranged read
// is written straight into the caller's memory, any other body into a string. The server is not trusted:
// before the first byte of a range is written, the headers are checked for the requested range and version.
//
// Belongs to the thread that runs the request. Errors name the request by its subject.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "objects/http/http_message.h"

namespace tensorcast::objects {

class HttpExchange {
 public:
  // `request` and `done` must outlive this object. `done`: the number of bytes of the range that earlier
  // attempts have read; this attempt adds its own.
  HttpExchange(const HttpRequest& request, uint64_t& done) : request_(request), done_(done) {}

  // Call these with each header line, and with each part of the body. False ends the transfer; refusal() has
  // the reason.
  bool AddHeader(std::string_view line);
  bool AddBody(std::string_view data);

  HttpReply& reply() { return reply_; }
  uint64_t received() const { return received_; }  // of headers and bodies: the progress of the transfer
  uint64_t body_bytes() const { return body_bytes_; }
  // The reason why the exchange ended the transfer; OK if it did not. FAILED_PRECONDITION: the server sent
  // another version. DATA_LOSS: the server cannot serve ranges. UNAVAILABLE: the headers have more than 256
  // KiB. RESOURCE_EXHAUSTED: a body that is not a range has more than 64 MiB.
  const absl::Status& refusal() const { return refusal_; }

  // Call it after the transfer has succeeded. UNAVAILABLE if the body of a ranged read is too short. OK if
  // the range is complete, or if the reply has no range (another status than 2xx).
  absl::Status Finish();

 private:
  bool BringsRange() const { return request_.read.has_value() && reply_.status / 100 == 2; }
  // Checks the headers of a ranged read. Sets `done_` to 0 if the reply is the whole object.
  absl::Status CheckRange();
  absl::Status Changed(std::string_view how) const;
  absl::Status NoRanges(std::string_view what) const;

  const HttpRequest& request_;
  uint64_t& done_;
  HttpReply reply_;
  absl::Status refusal_;
  uint64_t received_ = 0;
  uint64_t body_bytes_ = 0;
  size_t header_bytes_ = 0;
};

}  // namespace tensorcast::objects
