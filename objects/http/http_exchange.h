// Receives the reply of one attempt of an HTTP request: its headers, and its body. The body of a ranged read
// goes straight into the caller's memory, any other body into a string. The server is not trusted: bytes of a
// ranged read are written only if the reply is the requested range of the requested version.
//
// One owner thread: the one that runs the request. Errors name the request by its subject.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "objects/http/http_message.h"

namespace tensorcast::objects {

class HttpExchange {
 public:
  // Borrows both. `done` counts the bytes of a ranged read that earlier attempts brought; this attempt adds
  // its bytes.
  HttpExchange(const HttpRequest& request, uint64_t& done) : request_(request), done_(done) {}

  // Take a header line or a part of the body that arrived. False ends the transfer; refusal() says why.
  bool AddHeader(std::string_view line);
  bool AddBody(std::string_view data);

  HttpReply& reply() { return reply_; }
  uint64_t received() const { return received_; }  // of headers and bodies: the progress of the transfer
  uint64_t body_bytes() const { return body_bytes_; }
  // Why the exchange ended the transfer; OK: it did not. FAILED_PRECONDITION: the server sent another object
  // or version. DATA_LOSS: the server cannot serve ranges.
  const absl::Status& refusal() const { return refusal_; }

  // Called after the transfer succeeded. UNAVAILABLE if the body of a ranged read is short. OK if the range
  // is complete, or if the reply brings no range.
  absl::Status Finish();

 private:
  bool BringsRange() const { return request_.read.has_value() && reply_.status / 100 == 2; }
  absl::Status CheckRange() const;
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
