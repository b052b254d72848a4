#include "objects/http/http_client.h"

#include <algorithm>

#include "absl/log/log.h"
#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "objects/http/http_exchange.h"
#include "objects/http/http_session.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::objects {
namespace {

constexpr int kMaxRedirects = 10;
constexpr size_t kMaxIdleSessions = 64;

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}
bool IsRetried(int status) { return status == 429 || status >= 500; }

}  // namespace

HttpClient::HttpClient(HttpOptions options) : options_(std::move(options)) {}

HttpClient::~HttpClient() = default;

// A session serves one request at a time. Taking one out of `idle_` makes the caller its owner, so that the
// transfer itself runs without the lock.
std::unique_ptr<HttpSession> HttpClient::TakeSession(const std::string& origin) {
  {
    absl::MutexLock lock(&mutex_);
    // The session that was used last is the one with a connection that the server most likely still keeps.
    const auto found = std::find_if(idle_.rbegin(), idle_.rend(),
                                    [&](const auto& session) { return session->origin() == origin; });
    if (found != idle_.rend()) {
      std::unique_ptr<HttpSession> session = std::move(*found);
      idle_.erase(std::next(found).base());
      return session;
    }
  }
  return std::make_unique<HttpSession>(origin);
}

void HttpClient::NoteAnswered(const std::string& origin) {
  absl::MutexLock lock(&mutex_);
  answered_.insert(origin);
}

bool HttpClient::HasAnswered(const std::string& origin) {
  absl::MutexLock lock(&mutex_);
  return answered_.contains(origin);
}

void HttpClient::GiveSession(std::unique_ptr<HttpSession> session) {
  std::unique_ptr<HttpSession> oldest;  // closes its connections without the lock
  absl::MutexLock lock(&mutex_);
  idle_.push_back(std::move(session));
  if (idle_.size() > kMaxIdleSessions) {
    oldest = std::move(idle_.front());
    idle_.erase(idle_.begin());
  }
}

namespace {

// Waits for a random part of the pause, and for all of what the server asked for.
absl::Status Pause(const RequestContext& context, const HttpLimits& limits, int attempt,
                   std::string_view retry_after, std::string_view subject) {
  absl::BitGen random;
  // The pause doubles with each attempt, and the random part keeps clients that failed together from coming
  // back together. The shift is bounded so that it does not overflow.
  absl::Duration pause = std::min(limits.max_pause, limits.first_pause * (1 << std::min(attempt - 1, 20)));
  pause *= absl::Uniform(random, 0.0, 1.0);
  int64_t asked_seconds = 0;
  if (absl::SimpleAtoi(retry_after, &asked_seconds) && asked_seconds > 0) {
    pause = std::max(pause, std::min(limits.max_pause, absl::Seconds(asked_seconds)));
  }
  absl::Notification cancelled;
  const auto on_cancel = context.cancellation.OnCancel([&] { cancelled.Notify(); });
  cancelled.WaitForNotificationWithTimeout(std::min(pause, TimeLeft(context.deadline)));
  return context.Check(subject);
}

HttpHeaders RangeHeaders(const RangedRead& read, uint64_t done) {
  // Ranges of HTTP include their last byte.
  const uint64_t last = read.offset + read.destination.size() - 1;
  HttpHeaders headers = {{"Range", absl::StrCat("bytes=", read.offset + done, "-", last)}};
  // A weak ETag matches nothing (RFC 9110, 13.1.1); the reply's is compared all the same.
  if (!read.etag.empty() && !absl::StartsWith(read.etag, "W/")) headers.emplace_back("If-Match", read.etag);
  return headers;
}

absl::StatusOr<HttpHeaders> HeadersFor(const HttpRequest& request, const Url& url, uint64_t done) {
  HttpHeaders headers;
  if (request.read.has_value()) headers = RangeHeaders(*request.read, done);
  // A token or a signature is for the server that the caller named. A redirect could lead them elsewhere.
  if (!SameOrigin(url, request.url)) return headers;
  headers.insert(headers.end(), request.headers.begin(), request.headers.end());
  if (request.authorize) {
    TC_ASSIGN_OR_RETURN(const HttpHeaders proofs, request.authorize(url));
    headers.insert(headers.end(), proofs.begin(), proofs.end());
  }
  return headers;
}

absl::StatusOr<Url> Follow(const HttpRequest& request, const Url& from, std::string_view location) {
  absl::StatusOr<Url> to = ResolveLocation(from, location);
  if (!to.ok()) {
    // The remedy behind the last ';' is for a URL that the user wrote.
    const std::string_view why = to.status().message();
    return absl::Status(to.status().code(),
                        absl::StrCat(request.subject, ": the server redirects to a URL that cannot be used (",
                                     why.substr(0, why.rfind(';')), "); check the endpoint"));
  }
  if (from.scheme == "https" && to->scheme != "https") {
    return absl::PermissionDeniedError(
        absl::StrCat(request.subject, ": the server redirects from https to http; check the endpoint"));
  }
  TC_RETURN_IF_ERROR(request.may_follow(from, *to));
  return to;
}

}  // namespace

// One round of the loop is one attempt at one URL. It ends in a reply, in an error that no retry mends, in a
// redirect (the next round asks the new URL), or in a failure that may pass (the next round asks again, after
// a pause). A round after a redirect asks the URL that the redirect named, also when it is a retry.
absl::StatusOr<HttpReply> HttpClient::Fetch(const RequestContext& context, const HttpRequest& request) {
  const HttpLimits& limits = request.limits.has_value() ? *request.limits : options_.limits;
  Url url = request.url;
  // Bytes of the range that are there. It outlives the attempts, so each one goes on where the last one
  // ended.
  uint64_t done = 0;
  int redirects = 0;
  // Paid once, before the first attempt: an attempt after it asks only for bytes that were paid for.
  if (options_.rates != nullptr && request.read.has_value()) {
    TC_RETURN_IF_ERROR(
        options_.rates->Await(context, url.Origin(), request.read->destination.size(), request.subject));
  }
  for (int attempt = 1;;) {
    TC_RETURN_IF_ERROR(context.Check(request.subject));
    TC_ASSIGN_OR_RETURN(const HttpHeaders headers, HeadersFor(request, url, done));
    HttpExchange exchange(request, done);
    // Sessions for the two kinds are kept apart: a kept connection to a local address must not serve a
    // request that may have none.
    const bool local = !request.may_be_local || request.may_be_local(url);
    std::unique_ptr<HttpSession> session = TakeSession(absl::StrCat(url.Origin(), local ? "" : " remote"));
    requests_.fetch_add(1, std::memory_order_relaxed);
    otel::metrics::kObjectRequests.Add(1);
    const absl::StatusOr<HttpEnd> end =
        session->Run(context, request, url, headers, local, options_, limits, exchange);
    std::string cause = session->error();
    GiveSession(std::move(session));
    bytes_.fetch_add(exchange.body_bytes(), std::memory_order_relaxed);
    otel::metrics::kObjectBytes.Add(exchange.body_bytes());
    // A refusal ends the transfer through libcurl, which reports a failed write: the refusal has the reason.
    TC_RETURN_IF_ERROR(exchange.refusal());
    if (!end.ok()) return end.status();

    HttpReply& reply = exchange.reply();
    reply.url = url;
    int attempts = limits.attempts;
    std::string remedy = "try again later";
    // A status shows that a server is there, even where the body was cut. Without one the address may be
    // wrong, and a user should not wait for all attempts to hear of it.
    if (reply.status != 0) {
      NoteAnswered(url.Origin());
    } else if (!HasAnswered(url.Origin())) {
      attempts = std::min(attempts, limits.first_attempts);
      remedy = absl::StrCat("check the endpoint ", url.Origin(), " and the network");
    }
    std::atomic<uint64_t>* retries = &retries_after_lost_connection_;
    std::string_view reason = "lost_connection";
    if (*end != HttpEnd::kWhole) {
      if (*end == HttpEnd::kUntrusted) {
        return absl::PermissionDeniedError(
            absl::StrCat(request.subject, ": ", cause,
                         "; check the endpoint's host name, or add the server's CA certificate to the file "
                         "that AWS_CA_BUNDLE names"));
      }
      if (*end == HttpEnd::kFailed) {
        return absl::UnavailableError(
            absl::StrCat(request.subject, ": ", cause, "; check the endpoint ", url.Origin()));
      }
      if (*end == HttpEnd::kTimedOut) {
        retries = &retries_after_timeout_;
        reason = "timeout";
      }
    } else if (IsRetried(reply.status)) {
      cause = absl::StrCat("the server answered ", reply.status);
      retries = &retries_after_status_;
      reason = "status";
    } else if (request.may_follow && IsRedirect(reply.status) && !reply.Header("location").empty()) {
      if (++redirects > kMaxRedirects) {
        return absl::UnavailableError(absl::StrCat(request.subject, ": the server sent more than ",
                                                   kMaxRedirects, " redirects; check the endpoint"));
      }
      // A redirect is neither a failure nor an attempt: it has a bound of its own and no pause.
      TC_ASSIGN_OR_RETURN(url, Follow(request, url, reply.Header("location")));
      continue;
    } else if (absl::Status finished = exchange.Finish(); absl::IsUnavailable(finished)) {
      cause = finished.message();
    } else {
      TC_RETURN_IF_ERROR(finished);
      return std::move(reply);
    }
    if (attempt >= attempts) {
      return absl::UnavailableError(
          absl::StrCat(request.subject, ": ", cause, ", after ", attempt, " attempts; ", remedy));
    }
    LOG_EVERY_N_SEC(WARNING, 5) << request.subject << ": " << cause << "; trying again after attempt "
                                << attempt << " of " << attempts;
    retries->fetch_add(1, std::memory_order_relaxed);
    otel::metrics::kObjectRetries.Add(1, {reason});
    TC_RETURN_IF_ERROR(Pause(context, limits, attempt, reply.Header("retry-after"), request.subject));
    ++attempt;
  }
}

HttpCounts HttpClient::counts() const {
  return {.requests = requests_.load(std::memory_order_relaxed),
          .bytes = bytes_.load(std::memory_order_relaxed),
          .retries_after_status = retries_after_status_.load(std::memory_order_relaxed),
          .retries_after_timeout = retries_after_timeout_.load(std::memory_order_relaxed),
          .retries_after_lost_connection = retries_after_lost_connection_.load(std::memory_order_relaxed)};
}

}  // namespace tensorcast::objects
