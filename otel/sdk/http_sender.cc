#include <time.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

#include "opentelemetry/ext/http/client/http_client.h"
#include "opentelemetry/ext/http/client/http_client_factory.h"
#include "opentelemetry/ext/http/common/url_parser.h"
#include "otel/sdk/sender.h"

namespace tensorcast::otel::sdk {
namespace {

namespace http = opentelemetry::ext::http::client;
using opentelemetry::nostd::string_view;

// What the client may take beyond its own timeout.
constexpr std::chrono::seconds kGrace(1);

// As OTLP's specification lists them.
bool IsRetryable(int status) { return status == 429 || status == 502 || status == 503 || status == 504; }

// Retry-After: seconds, or a date. For any other text the sender's own backoff decides.
std::chrono::milliseconds ParseRetryAfter(const std::string& text) {
  constexpr int64_t kMaxSeconds = 24 * 60 * 60;
  int64_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size()) {
    tm date{};
    const char* const rest = strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &date);
    if (rest == nullptr || *rest != '\0') return {};
    seconds = timegm(&date) - time(nullptr);
  }
  return std::chrono::seconds(std::clamp<int64_t>(seconds, 0, kMaxSeconds));
}

std::string Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == text.npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(kSpace) - first + 1));
}

SendResult ResultOf(const http::Response& response) {
  const int status = response.GetStatusCode();
  if (status >= 200 && status < 300) return {};
  SendResult result{.error = "the collector answered with HTTP status " + std::to_string(status),
                    .retryable = IsRetryable(status)};
  response.ForEachHeader("Retry-After", [&](string_view, string_view value) {
    result.retry_after = ParseRetryAfter(Trimmed({value.data(), value.size()}));
    return false;
  });
  return result;
}

// Whether a session that is in this state got no answer and will get none.
bool IsLost(http::SessionState state) {
  switch (state) {
    case http::SessionState::CreateFailed:
    case http::SessionState::ConnectFailed:
    case http::SessionState::SendFailed:
    case http::SessionState::SSLHandshakeFailed:
    case http::SessionState::TimedOut:
    case http::SessionState::NetworkError:
    case http::SessionState::ReadError:
    case http::SessionState::WriteError:
    case http::SessionState::Cancelled:
      return true;
    default:
      return false;
  }
}

// As a session wants it: below the slash that it puts behind host and port.
std::string PathOf(const std::string& url) {
  std::string path = opentelemetry::ext::http::common::UrlParser(url).path_;
  if (path.starts_with('/')) path.erase(0, 1);
  return path;
}

// What comes of one post, told by the client's thread: the first thing that ends it counts.
class Outcome final : public http::EventHandler {
 public:
  void OnResponse(http::Response& response) noexcept override { Set(ResultOf(response)); }
  void OnEvent(http::SessionState state, string_view reason) noexcept override {
    if (!IsLost(state)) return;
    Set({.error =
             reason.empty() ? "the collector did not answer" : std::string(reason.data(), reason.size())});
  }

  // Nothing when it takes longer.
  std::optional<SendResult> WaitFor(std::chrono::milliseconds longest) {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, longest, [this] { return result_.has_value(); });
    return result_;
  }

 private:
  // The client may tell more than one end, an answer and then the closing of its connection.
  void Set(SendResult result) {
    const std::lock_guard lock(mutex_);
    if (!result_.has_value()) result_ = std::move(result);
    ended_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<SendResult> result_;
};

class HttpSender final : public Sender {
 public:
  explicit HttpSender(const HttpSenderOptions& options)
      : options_(options),
        path_(PathOf(options.url)),
        tls_(options.url, options.insecure_skip_verify, options.ca_file, /*ca_cert_string=*/"",
             options.key_file, /*client_key_string=*/"", options.cert_file, /*client_cert_string=*/"",
             /*min_tls=*/"", /*max_tls=*/"", /*cipher=*/"", /*cipher_suite=*/""),
        client_(http::HttpClientFactory::Create()) {}

  // The SDK's client answers on a thread of its own; this call waits for it, since the export queue sends one
  // batch at a time.
  SendResult Send(const std::string& message) override {
    const std::shared_ptr<http::Session> session = client_->CreateSession(options_.url);
    const std::shared_ptr<http::Request> request = session->CreateRequest();
    for (const auto& [name, value] : options_.headers) request->AddHeader(name, value);
    request->SetMethod(http::Method::Post);
    request->SetUri(path_);
    request->SetSslOptions(tls_);
    request->SetTimeoutMs(options_.timeout);
    request->ReplaceHeader("Content-Type", "application/x-protobuf");
    http::Body body(message.begin(), message.end());
    request->SetBody(body);
    // Shared with the client's thread, which may still tell of this post after we have given it up.
    const auto outcome = std::make_shared<Outcome>();
    session->SendRequest(outcome);
    // The client ends each post by its timeout; should it not, this thread goes on without it.
    if (std::optional<SendResult> result = outcome->WaitFor(options_.timeout + kGrace)) {
      session->FinishSession();
      return *std::move(result);
    }
    session->CancelSession();
    return {.error = "the collector did not answer in time"};
  }

 private:
  const HttpSenderOptions options_;
  const std::string path_;
  const http::HttpSslOptions tls_;
  const std::shared_ptr<http::HttpClient> client_;
};

}  // namespace

std::unique_ptr<Sender> NewHttpSender(const HttpSenderOptions& options) {
  return std::make_unique<HttpSender>(options);
}

}  // namespace tensorcast::otel::sdk
