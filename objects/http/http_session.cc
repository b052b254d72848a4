#include "objects/http/http_session.h"

#include <curl/curl.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/steady_time.h"
#include "objects/http/local_address.h"

namespace tensorcast::objects {
namespace {

// libcurl's own choice is 16 KiB. With larger pieces there are fewer reads of the socket and calls of OnBody.
constexpr long kReceiveBufferBytes = 512 << 10;

HttpEnd EndOf(CURLcode code) {
  switch (code) {
    case CURLE_OK:
      return HttpEnd::kWhole;
    case CURLE_OPERATION_TIMEDOUT:
      return HttpEnd::kTimedOut;
    case CURLE_PEER_FAILED_VERIFICATION:
      return HttpEnd::kUntrusted;
    // They say nothing of the object: the next attempt may succeed.
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
      return HttpEnd::kLost;
    default:
      return HttpEnd::kFailed;
  }
}

// Refuses before a connection is made, so that a name that resolves to this host reaches nothing.
curl_socket_t OpenRemoteSocket(void* refused, curlsocktype, curl_sockaddr* address) {
  if (IsLocalAddress(address->addr)) {
    *static_cast<bool*>(refused) = true;
    return CURL_SOCKET_BAD;
  }
  return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

// Give the exchange what libcurl delivered; a number other than the size ends the transfer.
size_t OnHeader(char* data, size_t size, size_t count, void* exchange) {
  return static_cast<HttpExchange*>(exchange)->AddHeader({data, size * count}) ? size * count : 0;
}
size_t OnBody(char* data, size_t size, size_t count, void* exchange) {
  return static_cast<HttpExchange*>(exchange)->AddBody({data, size * count}) ? size * count : 0;
}

}  // namespace

struct HttpSession::Handles {
  Handles() {
    static std::once_flag once;
    // It is not thread-safe in each release of libcurl, and sessions are made on any thread.
    std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
    multi = curl_multi_init();
    easy = curl_easy_init();
    CHECK(multi != nullptr && easy != nullptr) << "out of memory for an HTTP connection";
    curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, 2L);
  }
  ~Handles() {
    // libcurl wants this order: the connections belong to the multi handle, which closes them.
    curl_easy_cleanup(easy);
    curl_multi_cleanup(multi);
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;

  template <typename Value>
  void Set(CURLoption option, Value value) {
    const CURLcode code = curl_easy_setopt(easy, option, value);
    CHECK(code == CURLE_OK) << "libcurl refuses option " << option << ": " << curl_easy_strerror(code);
  }

  CURLM* multi = nullptr;
  CURL* easy = nullptr;
  char error[CURL_ERROR_SIZE] = "";
};

HttpSession::HttpSession(std::string origin)
    : origin_(std::move(origin)), curl_(std::make_unique<Handles>()) {}

HttpSession::~HttpSession() = default;

absl::StatusOr<HttpEnd> HttpSession::Run(const RequestContext& context, const HttpRequest& request,
                                         const Url& url, const HttpHeaders& headers, bool local,
                                         const HttpOptions& options, const HttpLimits& limits,
                                         HttpExchange& exchange) {
  curl_easy_reset(curl_->easy);  // keeps the connections
  curl_slist* list = nullptr;
  for (const auto& [name, value] : headers) {
    list = curl_slist_append(list, absl::StrCat(name, ": ", value).c_str());
  }
  // Without this libcurl asks "Expect: 100-continue" ahead of a large body, and waits a second for an answer
  // that many servers do not give.
  if (!request.body.empty()) list = curl_slist_append(list, "Expect:");
  bool address_refused = false;
  curl_->error[0] = '\0';
  curl_->Set(CURLOPT_URL, url.Text().c_str());
  curl_->Set(CURLOPT_PATH_AS_IS, 1L);  // what was signed and checked is what is sent
  curl_->Set(CURLOPT_PROTOCOLS_STR, "http,https");
  curl_->Set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_->Set(CURLOPT_USERAGENT, "tensorcast");
  curl_->Set(CURLOPT_HTTPHEADER, list);
  // Signals are the process's: libcurl may not set handlers where several threads run.
  curl_->Set(CURLOPT_NOSIGNAL, 1L);
  curl_->Set(CURLOPT_QUICK_EXIT, 1L);  // does not wait for a name server
  curl_->Set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(limits.connect)));
  curl_->Set(CURLOPT_BUFFERSIZE, kReceiveBufferBytes);
  curl_->Set(CURLOPT_ERRORBUFFER, curl_->error);
  curl_->Set(CURLOPT_HEADERFUNCTION, &OnHeader);
  curl_->Set(CURLOPT_HEADERDATA, &exchange);
  curl_->Set(CURLOPT_WRITEFUNCTION, &OnBody);
  curl_->Set(CURLOPT_WRITEDATA, &exchange);
  if (!options.ca_bundle.empty()) curl_->Set(CURLOPT_CAINFO, options.ca_bundle.c_str());
  if (!request.use_proxy) curl_->Set(CURLOPT_NOPROXY, "*");
  if (!local) {
    curl_->Set(CURLOPT_OPENSOCKETFUNCTION, &OpenRemoteSocket);
    curl_->Set(CURLOPT_OPENSOCKETDATA, &address_refused);
  }
  if (request.method == "HEAD") {
    curl_->Set(CURLOPT_NOBODY, 1L);
  } else if (request.method != "GET") {
    curl_->Set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    // POSTFIELDS makes the request a POST, and CUSTOMREQUEST then gives the real method. Without fields
    // libcurl would read the body from the standard input, so that an empty body is "" and not null.
    curl_->Set(CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
    curl_->Set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  const absl::StatusOr<int> code = Transfer(context, request, limits, exchange);
  curl_slist_free_all(list);
  // libcurl only knows that it got no socket, so this reason comes first. A name with a local address among
  // others is refused, too, whichever of them answered.
  if (address_refused) {
    return absl::PermissionDeniedError(absl::StrCat(
        request.subject, ": the host name has a loopback or link-local address, which origins may not have; ",
        "if the host is trusted, set AWS_ENDPOINT_URL or HF_ENDPOINT of the daemon to the host"));
  }
  if (!code.ok()) return code.status();
  const auto ended = static_cast<CURLcode>(*code);
  error_ = curl_->error;
  if (ended != CURLE_OK && error_.empty()) error_ = curl_easy_strerror(ended);
  return EndOf(ended);
}

// Runs the transfer on this thread and returns a CURLcode; CURLE_OPERATION_TIMEDOUT when no byte arrived for
// too long. libcurl moves bytes in curl_multi_perform and calls the exchange from there. Between two calls
// the thread sleeps in curl_multi_poll until a socket is ready, a cancellation wakes it, or a time is over. A
// transfer that is given up closes its connection.
absl::StatusOr<int> HttpSession::Transfer(const RequestContext& context, const HttpRequest& request,
                                          const HttpLimits& limits, HttpExchange& exchange) {
  curl_multi_add_handle(curl_->multi, curl_->easy);
  absl::StatusOr<int> code = CURLE_OK;
  {
    // Wakes the wait below. It is unregistered before the next request uses this session.
    const auto wake = context.cancellation.OnCancel([multi = curl_->multi] { curl_multi_wakeup(multi); });
    uint64_t moved = 0;
    // The first byte may take the time to connect and then as long as a stall.
    SteadyTime stalled_at = SteadyNow() + limits.connect + limits.stall;
    int running = 1;
    while (true) {
      curl_multi_perform(curl_->multi, &running);
      if (running == 0) break;
      if (absl::Status ended = context.Check(request.subject); !ended.ok()) {
        code = std::move(ended);
        break;
      }
      // Bytes in both directions count as progress: while a large body is sent, no byte arrives until the
      // reply.
      curl_off_t sent = 0;
      curl_easy_getinfo(curl_->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
      if (const uint64_t now = exchange.received() + static_cast<uint64_t>(sent); now != moved) {
        moved = now;
        stalled_at = SteadyNow() + limits.stall;
      }
      const absl::Duration wait = std::min(TimeLeft(stalled_at), TimeLeft(context.deadline));
      if (TimeLeft(stalled_at) <= absl::ZeroDuration()) {
        absl::SNPrintF(curl_->error, sizeof(curl_->error), "no byte arrived for %s",
                       absl::FormatDuration(limits.stall));
        code = CURLE_OPERATION_TIMEDOUT;
        break;
      }
      // The cut to whole milliseconds would make the last wait 0 and the loop busy, so one is added.
      const int64_t wait_ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(wait) + 1, 0, 1000);
      curl_multi_poll(curl_->multi, nullptr, 0, static_cast<int>(wait_ms), nullptr);
    }
  }
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(curl_->multi, &left)) {
    if (message->msg == CURLMSG_DONE && code.ok()) code = message->data.result;
  }
  curl_multi_remove_handle(curl_->multi, curl_->easy);  // closes a connection in the middle of a reply
  return code;
}

}  // namespace tensorcast::objects
