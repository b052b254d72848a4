#include "objects/http/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/text.h"
#include "objects/http/local_address.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::objects {
namespace {

constexpr int kMaxRedirects = 10;
constexpr size_t kMaxIdleSessions = 64;
constexpr size_t kMaxBodyBytes = size_t{64} << 20;  // of a reply that is kept in memory
constexpr size_t kMaxHeaderBytes = size_t{256} << 10;
constexpr long kReceiveBufferBytes = 512 << 10;

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}
bool IsRetried(int status) { return status == 429 || status >= 500; }

// Failures that say nothing of the object: the next attempt may succeed.
bool IsRetried(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
      return true;
    default:
      return false;
  }
}

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

// Refuses before a connection is made, so that a name that resolves to this host reaches nothing.
curl_socket_t OpenRemoteSocket(void* refused, curlsocktype, curl_sockaddr* address) {
  if (IsLocalAddress(address->addr)) {
    *static_cast<bool*>(refused) = true;
    return CURL_SOCKET_BAD;
  }
  return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

}  // namespace

std::string_view HttpReply::Header(std::string_view lower_case_name) const {
  const auto header = std::ranges::find(headers, lower_case_name,
                                        [](const auto& one) { return std::string_view(one.first); });
  return header == headers.end() ? std::string_view() : header->second;
}

absl::Status StatusOfReply(std::string_view subject, const HttpReply& reply, std::string_view detail) {
  if (reply.status >= 200 && reply.status < 300) return absl::OkStatus();
  std::string storage;
  const std::string said =
      detail.empty() ? "" : absl::StrCat(" (", Printable(CutUtf8(ValidUtf8(detail, storage), 200)), ")");
  const std::string cause = absl::StrCat(subject, ": the server answered ", reply.status, said);
  switch (reply.status) {
    case 401:
    case 403:
      return absl::PermissionDeniedError(
          absl::StrCat(cause, "; check the credentials and what they may read"));
    case 404:
    case 410:
      return absl::NotFoundError(absl::StrCat(cause, "; check the name"));
    case 412:
    case 416:
      return absl::FailedPreconditionError(
          absl::StrCat(cause, ": the object changed since it was opened; import it again"));
    default:
      return absl::UnavailableError(absl::StrCat(cause, "; try again later"));
  }
}

// One attempt: what libcurl's callbacks fill. It is used on the thread of its caller alone.
class HttpClient::Exchange {
 public:
  // `done`: bytes of a ranged read that earlier attempts brought.
  Exchange(const HttpRequest& request, uint64_t& done) : request_(request), done_(done) {}

  // Adds what libcurl delivered; a number other than `size` ends the transfer.
  static size_t OnHeader(char* data, size_t size, size_t count, void* self) {
    return static_cast<Exchange*>(self)->AddHeader({data, size * count});
  }
  static size_t OnBody(char* data, size_t size, size_t count, void* self) {
    return static_cast<Exchange*>(self)->AddBody({data, size * count});
  }

  HttpReply& reply() { return reply_; }
  uint64_t received() const { return received_; }
  uint64_t body_bytes() const { return body_bytes_; }
  // Why a callback ended the transfer; OK: none did.
  const absl::Status& refusal() const { return refusal_; }

  // Whether all of the range is there, or the reply has none. Called when the transfer succeeded.
  absl::Status Finish() {
    if (!BringsRange()) return absl::OkStatus();
    if (body_bytes_ == 0) TC_RETURN_IF_ERROR(CheckRange());
    if (done_ == request_.read->destination.size()) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("the body is short: ", done_, " bytes of ", request_.read->destination.size()));
  }

 private:
  bool BringsRange() const { return request_.read.has_value() && reply_.status / 100 == 2; }

  size_t AddHeader(std::string_view line) {
    received_ += line.size();
    header_bytes_ += line.size();
    if (header_bytes_ > kMaxHeaderBytes) {
      refusal_ = absl::UnavailableError(absl::StrCat(request_.subject, ": the headers are too large"));
      return 0;
    }
    const size_t size = line.size();
    line = absl::StripAsciiWhitespace(line);
    if (absl::StartsWith(line, "HTTP/")) {  // also after a 100 Continue
      reply_.headers.clear();
      const std::vector<std::string_view> words = absl::StrSplit(line, ' ');
      if (words.size() < 2 || !absl::SimpleAtoi(words[1], &reply_.status)) reply_.status = 0;
    } else if (const size_t colon = line.find(':'); colon != line.npos) {
      reply_.headers.emplace_back(absl::AsciiStrToLower(line.substr(0, colon)),
                                  absl::StripAsciiWhitespace(line.substr(colon + 1)));
    }
    return size;
  }

  size_t AddBody(std::string_view data) {
    received_ += data.size();
    if (BringsRange()) {
      if (body_bytes_ == 0) refusal_ = CheckRange();
      const HostSpan rest = request_.read->destination.subspan(done_);
      if (refusal_.ok() && data.size() > rest.size()) {
        refusal_ = Changed("the reply has more bytes than the range");
      }
      if (!refusal_.ok()) return 0;
      std::memcpy(rest.data(), data.data(), data.size());
      done_ += data.size();
    } else {
      if (reply_.body.size() + data.size() > kMaxBodyBytes) {
        refusal_ = absl::ResourceExhaustedError(
            absl::StrCat(request_.subject, ": the reply has more than ", kMaxBodyBytes, " bytes"));
        return 0;
      }
      reply_.body.append(data);
    }
    body_bytes_ += data.size();
    return data.size();
  }

  // Whether the body is the asked range of the asked version. Servers exist that ignore If-Match, and that
  // ignore Range, so nothing is taken for granted.
  absl::Status CheckRange() const {
    const RangedRead& read = *request_.read;
    const std::string_view etag = reply_.Header("etag");
    if (!read.etag.empty() && !etag.empty() && etag != read.etag) {
      return Changed(absl::StrCat("its ETag was ", read.etag, " and is ", etag));
    }
    ContentRange range;
    const std::string_view range_of_reply = reply_.Header("content-range");
    // rclone answers a range with 200, and says in Content-Range which bytes it sends.
    const bool partial = reply_.status == 206 || !range_of_reply.empty();
    if (partial) {
      const auto parsed = ParseContentRange(range_of_reply);
      if (!parsed.has_value()) return NoRanges("a part that has no Content-Range");
      range = *parsed;
    } else if (!absl::SimpleAtoi(reply_.Header("content-length"), &range.object_bytes)) {
      return NoRanges("the whole object, of unknown size");
    }
    if (range.object_bytes != 0 && range.object_bytes != read.object_bytes) {
      return Changed(absl::StrCat("it had ", read.object_bytes, " bytes and has ", range.object_bytes));
    }
    // A whole object in place of a range is the range only where it is all of it.
    const bool whole = !partial && read.destination.size() != read.object_bytes;
    if (whole || range.first != read.offset + done_) return NoRanges("other bytes than the range");
    return absl::OkStatus();
  }

  absl::Status Changed(std::string_view how) const {
    return absl::FailedPreconditionError(absl::StrCat(
        request_.subject, ": the object changed since it was opened: ", how, "; import it again"));
  }
  absl::Status NoRanges(std::string_view what) const {
    return absl::DataLossError(absl::StrCat(request_.subject, ": the server answers a range with ", what,
                                            "; download the object and import the file"));
  }

  const HttpRequest& request_;
  uint64_t& done_;
  HttpReply reply_;
  absl::Status refusal_;
  uint64_t received_ = 0;  // of headers and bodies: the progress of the transfer
  uint64_t body_bytes_ = 0;
  size_t header_bytes_ = 0;
};

// A handle of libcurl with the connections that it keeps.
class HttpClient::Session {
 public:
  explicit Session(std::string origin) : origin_(std::move(origin)) {
    static std::once_flag once;
    std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
    CHECK(multi_ != nullptr && easy_ != nullptr) << "out of memory for an HTTP connection";
    curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, 2L);
  }
  ~Session() {
    curl_easy_cleanup(easy_);
    curl_multi_cleanup(multi_);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const std::string& origin() const { return origin_; }

  absl::StatusOr<CURLcode> Run(const RequestContext& context, const HttpRequest& request, const Url& url,
                               const HttpHeaders& headers, bool local, const HttpOptions& options,
                               const HttpLimits& limits, Exchange& exchange) {
    curl_easy_reset(easy_);  // keeps the connections
    curl_slist* list = nullptr;
    for (const auto& [name, value] : headers) {
      list = curl_slist_append(list, absl::StrCat(name, ": ", value).c_str());
    }
    // Else libcurl waits a second with a large body for a word that many servers do not say.
    if (!request.body.empty()) list = curl_slist_append(list, "Expect:");
    bool address_refused = false;
    error_[0] = '\0';
    Set(CURLOPT_URL, url.Text().c_str());
    Set(CURLOPT_PATH_AS_IS, 1L);  // what was signed and checked is what is sent
    Set(CURLOPT_PROTOCOLS_STR, "http,https");
    Set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    Set(CURLOPT_USERAGENT, "tensorcast");
    Set(CURLOPT_HTTPHEADER, list);
    Set(CURLOPT_NOSIGNAL, 1L);
    Set(CURLOPT_QUICK_EXIT, 1L);  // does not wait for a name server
    Set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(limits.connect)));
    Set(CURLOPT_BUFFERSIZE, kReceiveBufferBytes);
    Set(CURLOPT_ERRORBUFFER, error_);
    Set(CURLOPT_HEADERFUNCTION, &Exchange::OnHeader);
    Set(CURLOPT_HEADERDATA, &exchange);
    Set(CURLOPT_WRITEFUNCTION, &Exchange::OnBody);
    Set(CURLOPT_WRITEDATA, &exchange);
    if (!options.ca_bundle.empty()) Set(CURLOPT_CAINFO, options.ca_bundle.c_str());
    if (!request.use_proxy) Set(CURLOPT_NOPROXY, "*");
    if (!local) {
      Set(CURLOPT_OPENSOCKETFUNCTION, &OpenRemoteSocket);
      Set(CURLOPT_OPENSOCKETDATA, &address_refused);
    }
    if (request.method == "HEAD") {
      Set(CURLOPT_NOBODY, 1L);
    } else if (request.method != "GET") {
      Set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
      Set(CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
      Set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    }
    const absl::StatusOr<CURLcode> code = Transfer(context, request, limits, exchange);
    curl_slist_free_all(list);
    if (address_refused) {
      return absl::PermissionDeniedError(absl::StrCat(
          request.subject, ": the host has a loopback or link-local address, which origins may not have; ",
          "configure it as the daemon's own endpoint"));
    }
    return code;
  }

  std::string_view error() const { return error_; }

 private:
  template <typename Value>
  void Set(CURLoption option, Value value) {
    const CURLcode code = curl_easy_setopt(easy_, option, value);
    CHECK(code == CURLE_OK) << "libcurl refuses option " << option << ": " << curl_easy_strerror(code);
  }

  // CURLE_OPERATION_TIMEDOUT when no byte arrived for too long.
  absl::StatusOr<CURLcode> Transfer(const RequestContext& context, const HttpRequest& request,
                                    const HttpLimits& limits, Exchange& exchange) {
    curl_multi_add_handle(multi_, easy_);
    absl::StatusOr<CURLcode> code = CURLE_OK;
    {
      // Wakes the wait below. It is unregistered before the next request uses this session.
      const auto wake = context.cancellation.OnCancel([multi = multi_] { curl_multi_wakeup(multi); });
      uint64_t moved = 0;
      SteadyTime stalled_at = SteadyNow() + limits.connect + limits.stall;
      int running = 1;
      while (true) {
        curl_multi_perform(multi_, &running);
        if (running == 0) break;
        if (absl::Status ended = context.Check(request.subject); !ended.ok()) {
          code = std::move(ended);
          break;
        }
        // Of a body that is sent the first sign of life may be the reply to all of it.
        curl_off_t sent = 0;
        curl_easy_getinfo(easy_, CURLINFO_SIZE_UPLOAD_T, &sent);
        if (const uint64_t now = exchange.received() + static_cast<uint64_t>(sent); now != moved) {
          moved = now;
          stalled_at = SteadyNow() + limits.stall;
        }
        const absl::Duration wait = std::min(TimeLeft(stalled_at), TimeLeft(context.deadline));
        if (TimeLeft(stalled_at) <= absl::ZeroDuration()) {
          absl::SNPrintF(error_, sizeof(error_), "no byte arrived for %s",
                         absl::FormatDuration(limits.stall));
          code = CURLE_OPERATION_TIMEDOUT;
          break;
        }
        const int64_t wait_ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(wait) + 1, 0, 1000);
        curl_multi_poll(multi_, nullptr, 0, static_cast<int>(wait_ms), nullptr);
      }
    }
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi_, &left)) {
      if (message->msg == CURLMSG_DONE && code.ok()) code = message->data.result;
    }
    curl_multi_remove_handle(multi_, easy_);  // closes a connection in the middle of a reply
    return code;
  }

  const std::string origin_;
  CURLM* const multi_ = curl_multi_init();
  CURL* const easy_ = curl_easy_init();
  char error_[CURL_ERROR_SIZE] = "";
};

HttpClient::HttpClient(HttpOptions options) : options_(std::move(options)) {}

HttpClient::~HttpClient() = default;

std::unique_ptr<HttpClient::Session> HttpClient::TakeSession(const std::string& origin) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = std::find_if(idle_.rbegin(), idle_.rend(),
                                    [&](const auto& session) { return session->origin() == origin; });
    if (found != idle_.rend()) {
      std::unique_ptr<Session> session = std::move(*found);
      idle_.erase(std::next(found).base());
      return session;
    }
  }
  return std::make_unique<Session>(origin);
}

void HttpClient::NoteAnswered(const std::string& origin) {
  absl::MutexLock lock(&mutex_);
  answered_.insert(origin);
}

bool HttpClient::HasAnswered(const std::string& origin) {
  absl::MutexLock lock(&mutex_);
  return answered_.contains(origin);
}

void HttpClient::GiveSession(std::unique_ptr<Session> session) {
  std::unique_ptr<Session> oldest;  // closes its connections without the lock
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
  const uint64_t last = read.offset + read.destination.size() - 1;
  HttpHeaders headers = {{"Range", absl::StrCat("bytes=", read.offset + done, "-", last)}};
  // A weak ETag matches nothing (RFC 9110, 13.1.1); the reply's is compared all the same.
  if (!read.etag.empty() && !absl::StartsWith(read.etag, "W/")) headers.emplace_back("If-Match", read.etag);
  return headers;
}

absl::StatusOr<HttpHeaders> HeadersFor(const HttpRequest& request, const Url& url, uint64_t done) {
  HttpHeaders headers;
  if (request.read.has_value()) headers = RangeHeaders(*request.read, done);
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
  if (!to.ok()) return Annotate(to.status(), absl::StrCat(request.subject, ": follow a redirect"));
  if (from.scheme == "https" && to->scheme != "https") {
    return absl::PermissionDeniedError(
        absl::StrCat(request.subject, ": the server redirects from https to http; check the endpoint"));
  }
  TC_RETURN_IF_ERROR(request.may_follow(from, *to));
  return to;
}

}  // namespace

absl::StatusOr<HttpReply> HttpClient::Fetch(const RequestContext& context, const HttpRequest& request) {
  const HttpLimits& limits = request.limits.has_value() ? *request.limits : options_.limits;
  Url url = request.url;
  uint64_t done = 0;
  int redirects = 0;
  if (options_.rates != nullptr && request.read.has_value()) {
    TC_RETURN_IF_ERROR(
        options_.rates->Await(context, url.Origin(), request.read->destination.size(), request.subject));
  }
  for (int attempt = 1;;) {
    TC_RETURN_IF_ERROR(context.Check(request.subject));
    TC_ASSIGN_OR_RETURN(const HttpHeaders headers, HeadersFor(request, url, done));
    Exchange exchange(request, done);
    // A connection to a local address is not for a request that may have none.
    const bool local = !request.may_be_local || request.may_be_local(url);
    std::unique_ptr<Session> session = TakeSession(absl::StrCat(url.Origin(), local ? "" : " remote"));
    requests_.fetch_add(1, std::memory_order_relaxed);
    otel::metrics::kObjectRequests.Add(1);
    const absl::StatusOr<CURLcode> code =
        session->Run(context, request, url, headers, local, options_, limits, exchange);
    std::string cause(session->error());
    GiveSession(std::move(session));
    bytes_.fetch_add(exchange.body_bytes(), std::memory_order_relaxed);
    otel::metrics::kObjectBytes.Add(exchange.body_bytes());
    TC_RETURN_IF_ERROR(exchange.refusal());
    if (!code.ok()) return code.status();

    HttpReply& reply = exchange.reply();
    reply.url = url;
    int attempts = limits.attempts;
    std::string remedy = "try again later";
    if (reply.status != 0) {
      NoteAnswered(url.Origin());
    } else if (!HasAnswered(url.Origin())) {
      attempts = std::min(attempts, limits.first_attempts);
      remedy = absl::StrCat("check the endpoint ", url.Origin(), " and the network");
    }
    std::atomic<uint64_t>* retries = &retries_after_lost_connection_;
    std::string_view reason = "lost_connection";
    if (*code != CURLE_OK) {
      if (cause.empty()) cause = curl_easy_strerror(*code);
      if (*code == CURLE_PEER_FAILED_VERIFICATION) {
        return absl::PermissionDeniedError(
            absl::StrCat(request.subject, ": ", cause, "; add the server's authority to the CA bundle"));
      }
      if (!IsRetried(*code)) return absl::UnavailableError(absl::StrCat(request.subject, ": ", cause));
      if (*code == CURLE_OPERATION_TIMEDOUT) {
        retries = &retries_after_timeout_;
        reason = "timeout";
      }
    } else if (IsRetried(reply.status)) {
      cause = absl::StrCat("the server answered ", reply.status);
      retries = &retries_after_status_;
      reason = "status";
    } else if (request.may_follow && IsRedirect(reply.status) && !reply.Header("location").empty()) {
      if (++redirects > kMaxRedirects) {
        return absl::UnavailableError(
            absl::StrCat(request.subject, ": more than ", kMaxRedirects, " redirects; check the endpoint"));
      }
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
    LOG_EVERY_N_SEC(WARNING, 5) << request.subject << ": " << cause << "; attempt " << attempt << " of "
                                << attempts << ", tries again";
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
