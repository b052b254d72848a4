#include "cli/dashboard/dashboard.h"

#include <gmock/gmock.h>
#include <openssl/ssl.h>
#include <signal.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/testing/eventually.h"
#include "base/testing/temp_folder.h"
#include "cli/dashboard/test_http.h"
#include "security/testing/address_certificate.h"
#include "security/testing/test_authority.h"

namespace tensorcast::dashboard::dashboard_test {
namespace {

using ::testing::AllOf;
using testing::BodyOf;
using testing::ConnectTo;
using testing::Exchange;
using testing::Get;
using ::testing::HasSubstr;
using testing::HeaderOf;
using ::testing::Not;
using testing::ReadUntil;
using testing::SendTo;
using ::testing::StartsWith;
using testing::StatusOf;

constexpr PageFile kPages[] = {
    {"index.html", "<p>first", "aa"}, {"app.js", "let a;", "bb"}, {"login.css", "p{}", "cc"}};

class DashboardTest : public ::testing::Test {
 protected:
  void Start(HttpServerOptions server = {}) {
    Dashboard::Options options;
    options.server = server;
    if (options.server.listen.host.empty()) options.server.listen.host = "127.0.0.1";
    options.page = kPages;
    options.min_interval = absl::Milliseconds(1);
    options.documents = [this](const std::string& view, const Query& query) { return Make(view, query); };
    auto started = Dashboard::Start(std::move(options));
    ASSERT_TRUE(started.ok()) << started.status();
    dashboard_ = *std::move(started);
  }
  void SetUp() override { Start(); }

  virtual absl::StatusOr<nlohmann::json> Make(const std::string& view, const Query& query) {
    ++made_;
    if (view == "missing") return absl::NotFoundError("no such view");
    if (view == "away") return absl::UnavailableError("the store is away");
    return nlohmann::json{{"view", view}, {"query", query}};
  }

  uint16_t port() const { return dashboard_->port(); }
  std::string NewLoginTarget() {
    const std::string address = dashboard_->NewLoginAddress();
    return address.substr(address.find("/login"));
  }
  // The header of a browser that logged in.
  std::string NewCookie() {
    const std::string answer = Get(port(), NewLoginTarget());
    const std::string cookie = HeaderOf(answer, "Set-Cookie");
    return absl::StrCat("Cookie: ", cookie.substr(0, cookie.find(';')), "\r\n");
  }

  std::atomic<int> made_ = 0;
  std::unique_ptr<Dashboard> dashboard_;
};

TEST_F(DashboardTest, LoginAddress_GivesACookieAndACleanAddress) {
  EXPECT_THAT(dashboard_->NewLoginAddress(),
              StartsWith(absl::StrCat("http://127.0.0.1:", port(), "/login?token=")));
  const std::string answer = Get(port(), NewLoginTarget());
  EXPECT_EQ(StatusOf(answer), 303);
  EXPECT_EQ(HeaderOf(answer, "Location"), "/");
  const std::string cookie = HeaderOf(answer, "Set-Cookie");
  EXPECT_THAT(cookie, AllOf(HasSubstr("; HttpOnly"), HasSubstr("; SameSite=Lax"), HasSubstr("; Path=/;")));
  EXPECT_THAT(cookie, Not(HasSubstr("Secure"))) << "the server is in clear";
}

TEST_F(DashboardTest, TokenUsedTwice_GivesTheLoginPage) {
  const std::string target = NewLoginTarget();
  EXPECT_EQ(StatusOf(Get(port(), target)), 303);
  const std::string again = Get(port(), target);
  EXPECT_EQ(StatusOf(again), 401);
  EXPECT_EQ(HeaderOf(again, "Set-Cookie"), "");
  EXPECT_THAT(BodyOf(again), HasSubstr("was used"));
}

TEST_F(DashboardTest, HeadOfALoginAddress_DoesNotUseTheToken) {
  const std::string target = NewLoginTarget();
  EXPECT_EQ(StatusOf(Exchange(
                port(), absl::StrCat("HEAD ", target, " HTTP/1.1\r\nHost: localhost:", port(), "\r\n\r\n"))),
            401);
  EXPECT_EQ(StatusOf(Get(port(), target)), 303);
}

TEST_F(DashboardTest, Login_LeadsOnlyToPathsOfThisServer) {
  EXPECT_EQ(HeaderOf(Get(port(), NewLoginTarget() + "&next=/node%3Fnode%3Da%2520b"), "Location"),
            "/node?node=a%20b");
  for (const char* evil : {"//evil.example", "https://evil.example", "/%5Cevil.example", "evil"}) {
    EXPECT_EQ(HeaderOf(Get(port(), absl::StrCat(NewLoginTarget(), "&next=", evil)), "Location"), "/") << evil;
  }
  EXPECT_EQ(StatusOf(Get(port(), NewLoginTarget() + "&next=/%0d%0aSet-Cookie:a=b")), 400);
}

TEST_F(DashboardTest, WithoutACookie_PagesLeadToTheLogin) {
  const std::string answer = Get(port(), "/node?node=%22%3E%3Cscript%3E");
  EXPECT_EQ(StatusOf(answer), 401);
  EXPECT_EQ(HeaderOf(answer, "Content-Type"), "text/html; charset=utf-8");
  EXPECT_THAT(BodyOf(answer),
              AllOf(HasSubstr("tensorcast dashboard token"), HasSubstr("method=\"get\""),
                    HasSubstr("value=\"/node?node=%22%3E%3Cscript%3E\""), Not(HasSubstr("<script"))));
  const std::string api = Get(port(), "/api/status");
  EXPECT_EQ(StatusOf(api), 401);
  EXPECT_EQ(nlohmann::json::parse(BodyOf(api), nullptr, false)["error"]["code"], "UNAUTHENTICATED");
  EXPECT_EQ(StatusOf(Get(port(), "/api/events?view=status")), 401);
  EXPECT_EQ(StatusOf(Get(port(), "/api/status", "Cookie: tensorcast_dashboard_1=x\r\n")), 401);
  EXPECT_EQ(made_, 0) << "no server is asked for a stranger";
  EXPECT_EQ(StatusOf(Get(port(), "/login.css")), 200);
}

TEST_F(DashboardTest, WithACookie_PagesAndDocumentsAreServed) {
  const std::string cookie = NewCookie();
  EXPECT_EQ(BodyOf(Get(port(), "/", cookie)), "<p>first");
  EXPECT_EQ(BodyOf(Get(port(), "/node?node=a", cookie)), "<p>first") << "a view has its address as a path";
  const std::string script = Get(port(), "/app.js", cookie);
  EXPECT_EQ(HeaderOf(script, "Content-Type"), "text/javascript; charset=utf-8");
  EXPECT_EQ(StatusOf(Get(port(), "/app.js", cookie + "If-None-Match: " + HeaderOf(script, "ETag") + "\r\n")),
            304);
  const std::string document = Get(port(), "/api/nodes?zone=a&q=b+c", cookie);
  EXPECT_EQ(StatusOf(document), 200);
  EXPECT_EQ(HeaderOf(document, "Cache-Control"), "no-store");
  EXPECT_EQ(nlohmann::json::parse(BodyOf(document), nullptr, false),
            (nlohmann::json{{"view", "nodes"}, {"query", {{"zone", "a"}, {"q", "b c"}}}}));
  EXPECT_EQ(StatusOf(Get(port(), "/api/missing", cookie)), 404);
  EXPECT_EQ(StatusOf(Get(port(), "/api/away", cookie)), 502);
}

TEST_F(DashboardTest, PathsOutOfThePage_AreNotFound) {
  const std::string cookie = NewCookie();
  for (const char* path : {"/../../etc/passwd.txt", "/%2e%2e/%2e%2e/etc/passwd.txt", "//etc/passwd.txt",
                           "/page/app.js", "/app.js/../index.html.", "/..%2f..%2fetc%2fhosts.x"}) {
    EXPECT_EQ(StatusOf(Get(port(), path, cookie)), 404) << path;
  }
}

TEST_F(DashboardTest, ForeignHostOrOrigin_Is403) {
  const std::string cookie = NewCookie();
  const auto get = [&](const std::string& headers) {
    return StatusOf(Exchange(port(), absl::StrCat("GET /api/status HTTP/1.1\r\n", headers, cookie, "\r\n")));
  };
  const std::string own = absl::StrCat("127.0.0.1:", port());
  EXPECT_EQ(get("Host: " + own + "\r\n"), 200);
  EXPECT_EQ(get(absl::StrCat("Host: localhost:", port(), "\r\n")), 200);
  EXPECT_EQ(get("Host: " + own + "\r\nOrigin: http://" + own + "\r\n"), 200);
  EXPECT_EQ(get("Host: evil.example\r\n"), 403);
  EXPECT_EQ(get(absl::StrCat("Host: evil.example:", port(), "\r\n")), 403) << "DNS rebinding";
  EXPECT_EQ(get("Host: 127.0.0.1\r\n"), 403);
  EXPECT_EQ(get(""), 403);
  EXPECT_EQ(get("Host: " + own + "\r\nOrigin: null\r\n"), 403);
  EXPECT_EQ(get("Host: " + own + "\r\nOrigin: https://evil.example\r\n"), 403);
  EXPECT_EQ(get(absl::StrCat("Host: ", own, "\r\nOrigin: http://localhost:", port(), "\r\n")), 403);
  EXPECT_EQ(StatusOf(Exchange(
                port(), absl::StrCat("GET ", NewLoginTarget(), " HTTP/1.1\r\nHost: evil.example\r\n\r\n"))),
            403);
}

TEST_F(DashboardTest, EveryAnswer_HasTheSecurityHeaders) {
  const std::string cookie = NewCookie();
  const std::string post =
      absl::StrCat("POST / HTTP/1.1\r\nHost: 127.0.0.1:", port(), "\r\nContent-Length: 3\r\n\r\na=b");
  EXPECT_EQ(StatusOf(Exchange(port(), post)), 405);
  EXPECT_EQ(HeaderOf(Exchange(port(), post), "Allow"), "GET, HEAD");
  for (const std::string& answer :
       {Get(port(), "/", cookie), Get(port(), "/"), Get(port(), "/api/status", cookie),
        Exchange(port(), post), Exchange(port(), "x\r\n\r\n")}) {
    EXPECT_EQ(
        HeaderOf(answer, "Content-Security-Policy"),
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'self'");
    EXPECT_EQ(HeaderOf(answer, "X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(HeaderOf(answer, "Referrer-Policy"), "no-referrer");
    EXPECT_EQ(HeaderOf(answer, "Access-Control-Allow-Origin"), "");
  }
}

TEST_F(DashboardTest, Events_AreTheDocumentAndEndWithTheTab) {
  const std::string cookie = NewCookie();
  {
    const UniqueFd tab = ConnectTo(port());
    SendTo(tab, absl::StrCat("GET /api/events?view=nodes&zone=a HTTP/1.1\r\nHost: 127.0.0.1:", port(), "\r\n",
                             cookie, "\r\n"));
    const std::string answer = ReadUntil(tab, "\n\n");
    const std::string event =
        answer.find("event:") == std::string::npos ? answer + ReadUntil(tab, "\n\n") : answer;
    EXPECT_EQ(HeaderOf(event, "Content-Type"), "text/event-stream");
    EXPECT_THAT(event,
                HasSubstr("event: document\ndata: {\"query\":{\"zone\":\"a\"},\"view\":\"nodes\"}\n\n"));
    EXPECT_EQ(dashboard_->pollers(), 1u);
  }
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return dashboard_->pollers() == 0; }))
      << "a view that no tab watches is not polled";
  EXPECT_EQ(StatusOf(Get(port(), "/api/events", cookie)), 400);
}

TEST_F(DashboardTest, BadBytes_NeverEndTheServer) {
  for (const std::string& bytes :
       {std::string("\0\0\0\0", 4) + "\r\n\r\n", std::string("\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\n\r\n"), "GET /" + std::string(100'000, 'a') + " HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nA: " + std::string(1'000'000, 'a') + "\r\n\r\n",
        std::string("\x16\x03\x01\x02\x01\x01\xff\r\n\r\n")}) {
    const int status = StatusOf(Exchange(port(), bytes));
    EXPECT_GE(status, 400) << bytes.substr(0, 20);
    EXPECT_LT(status, 500) << bytes.substr(0, 20);
  }
  EXPECT_EQ(StatusOf(Get(port(), "/", NewCookie())), 200);
}

TEST_F(DashboardTest, Start_RefusesUnprotectedAddressesAndUsedPorts) {
  Dashboard::Options options;
  options.server.listen.host = "0.0.0.0";
  const absl::Status beyond = Dashboard::Start(options).status();
  EXPECT_EQ(beyond.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(beyond.message(), HasSubstr("give --cert and --key"));
  options.server.listen.host = "127.0.0.1";
  options.server.listen.port = port();
  const absl::Status used = Dashboard::Start(options).status();
  EXPECT_EQ(used.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(used.message(), AllOf(HasSubstr(absl::StrCat("127.0.0.1:", port())), HasSubstr("--listen")));
}

class SlowHead : public DashboardTest {
 protected:
  void SetUp() override {
    HttpServerOptions server;
    server.head_timeout = absl::Milliseconds(50);
    Start(server);
  }
};

TEST_F(SlowHead, HeadThatDoesNotEnd_IsRefused) {
  const UniqueFd peer = ConnectTo(port());
  SendTo(peer, "GET / HTTP/1.1\r\n");
  EXPECT_EQ(StatusOf(ReadUntil(peer, "")), 408);
}

// Documents that wait until the test lets them.
class Limits : public DashboardTest {
 protected:
  void SetUp() override {
    HttpServerOptions server;
    server.max_requests = 1;
    server.max_streams = 1;
    server.max_refusals = 4;
    Start(server);
  }
  void TearDown() override {
    if (!go_.HasBeenNotified()) go_.Notify();
  }
  absl::StatusOr<nlohmann::json> Make(const std::string& view, const Query& /*query*/) override {
    ++made_;
    if (view == "slow") go_.WaitForNotification();
    return nlohmann::json::object();
  }
  absl::Notification go_;
};

TEST_F(Limits, TooManyRequests_Are503) {
  const std::string cookie = NewCookie();
  std::string slow;
  std::thread other([&] { slow = Get(port(), "/api/slow", cookie); });
  ASSERT_TRUE(tensorcast::testing::Eventually([&] { return made_ == 1; }));
  const std::string refused = Get(port(), "/api/nodes", cookie);
  EXPECT_EQ(StatusOf(refused), 503);
  EXPECT_EQ(HeaderOf(refused, "Retry-After"), "2");
  go_.Notify();
  other.join();
  EXPECT_EQ(StatusOf(slow), 200);
}

TEST_F(Limits, TooManyStreams_Are503AndRequestsGoOn) {
  const std::string cookie = NewCookie();
  const std::string events =
      absl::StrCat("GET /api/events?view=nodes HTTP/1.1\r\nHost: 127.0.0.1:", port(), "\r\n", cookie, "\r\n");
  const UniqueFd tab = ConnectTo(port());
  SendTo(tab, events);
  ReadUntil(tab, "event: document");
  EXPECT_EQ(StatusOf(Exchange(port(), events)), 503);
  EXPECT_EQ(StatusOf(Get(port(), "/api/nodes", cookie)), 200);
}

// The answer over TLS, to a peer that shows this certificate where it has one.
std::string TlsGet(uint16_t port, std::string_view target, const security::Identity::Files& files = {}) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  if (!files.certificate.empty()) {
    EXPECT_EQ(SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM), 1);
  }
  const UniqueFd fd = ConnectTo(port);
  const std::unique_ptr<SSL, decltype(&SSL_free)> tls(SSL_new(context.get()), SSL_free);
  SSL_set_fd(tls.get(), fd.get());
  if (SSL_connect(tls.get()) != 1) return "";
  const std::string request = absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: 127.0.0.1:", port, "\r\n\r\n");
  SSL_write(tls.get(), request.data(), static_cast<int>(request.size()));
  std::string answer;
  char buffer[4096];
  for (int got = 0; (got = SSL_read(tls.get(), buffer, sizeof(buffer))) > 0;) answer.append(buffer, got);
  return answer;
}

class DashboardTls : public ::testing::Test {
 protected:
  // A write to a server that refused the certificate is an error here, and not the end of the program.
  DashboardTls() { signal(SIGPIPE, SIG_IGN); }
  void SetUp() override {
    const security::Identity::Files files =
        security::testing::MakeAddressCertificate(folder_.path(), "127.0.0.1");
    options_.server.listen.host = "0.0.0.0";
    options_.server.tls.certificate = files.certificate;
    options_.server.tls.key = files.key;
    options_.server.tls.client_ca = authority_.ca();
    options_.page = kPages;
    auto started = Dashboard::Start(options_);
    ASSERT_TRUE(started.ok()) << started.status();
    dashboard_ = *std::move(started);
  }

  tensorcast::testing::TempFolder folder_;
  security::testing::TestAuthority authority_;
  Dashboard::Options options_;
  std::unique_ptr<Dashboard> dashboard_;
};

TEST_F(DashboardTls, Login_GivesASecureCookie) {
  const std::string address = dashboard_->NewLoginAddress();
  EXPECT_THAT(address, StartsWith("https://127.0.0.1:"))
      << "a name of the certificate, since a wildcard cannot be opened";
  const std::string answer = TlsGet(dashboard_->port(), address.substr(address.find("/login")));
  EXPECT_EQ(StatusOf(answer), 303);
  EXPECT_THAT(HeaderOf(answer, "Set-Cookie"), HasSubstr("; Secure"));
  EXPECT_EQ(StatusOf(Get(dashboard_->port(), "/")), 0) << "bytes in clear are not a handshake";
}

TEST_F(DashboardTls, ClientCertificate_StandsForALogin) {
  EXPECT_EQ(StatusOf(TlsGet(dashboard_->port(), "/")), 401);
  EXPECT_EQ(StatusOf(TlsGet(dashboard_->port(), "/", authority_.Issue("client/a"))), 200);
  const security::testing::TestAuthority other;
  EXPECT_NE(StatusOf(TlsGet(dashboard_->port(), "/", other.Issue("client/a"))), 200);
  EXPECT_NE(StatusOf(TlsGet(dashboard_->port(), "/", authority_.Issue("client/b", -absl::Hours(1)))), 200);
}

TEST_F(DashboardTls, FileThatDoesNotFit_IsNamedByItsFlag) {
  options_.server.tls.key = options_.server.tls.certificate;
  EXPECT_THAT(Dashboard::Start(options_).status().message(), HasSubstr("--key"));
  options_.server.tls.certificate = folder_.File("none.pem");
  EXPECT_THAT(Dashboard::Start(options_).status().message(), HasSubstr("--cert"));
}

}  // namespace
}  // namespace tensorcast::dashboard::dashboard_test
