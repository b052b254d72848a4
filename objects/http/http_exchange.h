// One attempt at an HTTP request, and what its reply is taken for: the headers, and the body in memory or, of
// a ranged read, straight in the caller's memory. Nothing is believed of the server: a body is written only
// where it is the asked range of the asked version.
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
  // Borrows both. `done`: bytes of a ranged read that earlier attempts brought; this one adds its own.
  HttpExchange(const HttpRequest& request, uint64_t& done) : request_(request), done_(done) {}

  // Take what arrived: a line of the headers, a part of the body. False ends the transfer; refusal() says
  // why.
  bool AddHeader(std::string_view line);
  bool AddBody(std::string_view data);

  HttpReply& reply() { return reply_; }
  uint64_t received() const { return received_; }  // of headers and bodies: the progress of the transfer
  uint64_t body_bytes() const { return body_bytes_; }
  // Why the exchange ended the transfer; OK: it did not. FAILED_PRECONDITION: it is not the object that is
  // read. DATA_LOSS: the server cannot serve ranges.
  const absl::Status& refusal() const { return refusal_; }

  // Whether all of the range is there, or the reply has none. UNAVAILABLE: the body is short. Called when the
  // transfer succeeded.
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
