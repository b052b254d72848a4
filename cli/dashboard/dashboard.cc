#include "cli/dashboard/dashboard.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace tensorcast::dashboard {
namespace {

constexpr std::string_view kApi = "/api/";
constexpr std::string_view kLoginStyle = "login.css";
constexpr absl::Duration kLook =
    absl::Seconds(1);  // how soon a tab that went, and a session that ended, is seen
constexpr absl::Duration kComment = absl::Seconds(15);

// The only page that needs no cookie, so that it says nothing of the cluster. $NEXT is the path to which the
// login leads, $PROBLEM a paragraph about the previous attempt, or nothing. Both come after escaping or are
// our own text.
constexpr std::string_view kLoginPage = R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>TensorCast: log in</title>
<link rel="stylesheet" href="/login.css">
</head>
<body>
<main>
<h1>TensorCast</h1>
<p>This dashboard answers only browsers that showed a token. Run <code>tensorcast dashboard token</code> on
this host, as the user that runs the dashboard, and open the address that it prints, or paste its token here.</p>
<form action="/login" method="get">
<input type="hidden" name="next" value="$NEXT">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="off" required autofocus>
<button>Log in</button>
</form>
$PROBLEM</main>
</body>
</html>
)";

std::string EscapeHtml(std::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

HttpResponse LoginPage(std::string_view next, std::string_view problem) {
  HttpResponse response;
  response.status = 401;
  response.content_type = "text/html; charset=utf-8";
  response.headers.emplace_back("Cache-Control", "no-store");
  response.body = absl::StrReplaceAll(
      kLoginPage,
      {{"$NEXT", EscapeHtml(next)},
       {"$PROBLEM", problem.empty() ? "" : absl::StrCat("<p role=\"alert\">", problem, "</p>\n")}});
  return response;
}

HttpResponse JsonResponse(int status, std::string body) {
  HttpResponse response;
  response.status = status;
  response.content_type = "application/json; charset=utf-8";
  response.headers.emplace_back("Cache-Control", "no-store");
  response.body = std::move(body);
  return response;
}

HttpResponse ErrorResponse(const absl::Status& error) {
  int status = 502;
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
      status = 400;
      break;
    case absl::StatusCode::kUnauthenticated:
      status = 401;
      break;
    case absl::StatusCode::kNotFound:
      status = 404;
      break;
    default:
      break;
  }
  return JsonResponse(status, ToText(ErrorDocument(error)));
}

std::string_view TypeOf(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
      {".html", "text/html; charset=utf-8"},
      {".css", "text/css; charset=utf-8"},
      {".js", "text/javascript; charset=utf-8"},
      {".mjs", "text/javascript; charset=utf-8"},
      {".svg", "image/svg+xml"},
      {".png", "image/png"},
      {".ico", "image/x-icon"},
      {".json", "application/json; charset=utf-8"},
      {".woff2", "font/woff2"}};
  for (const auto& [end, type] : kTypes) {
    if (absl::EndsWith(name, end)) return type;
  }
  return "application/octet-stream";
}

// Where the browser was, for a login that leads back there. Printable ASCII, as a header needs it.
std::string AddressOf(const HttpRequest& request) {
  std::string address = EncodeUrl(request.path);
  std::string_view mark = "?";
  for (const auto& [name, value] : request.query) {
    absl::StrAppend(&address, mark, EncodeUrl(name), "=", EncodeUrl(value));
    mark = "&";
  }
  return address;
}

std::string_view Scheme(bool tls) { return tls ? "https://" : "http://"; }

HostPort AddressFor(const HttpServer& server, const HostPort& listen) {
  HostPort address;
  address.host = listen.host;
  address.port = server.port();
  if (IsWildcard(listen)) {
    // A wildcard cannot be opened; the first name of the certificate can.
    const std::vector<std::string> names = server.CertificateNames();
    address.host = names.empty() ? "localhost" : names.front();
  }
  return address;
}

std::vector<std::string> NamesOf(const HttpServer& server, const HostPort& listen) {
  std::vector<std::string> names = server.CertificateNames();
  if (!IsWildcard(listen)) names.push_back(listen.host);
  // By these names a browser on this host reaches a loopback or wildcard address.
  if (IsLoopback(listen) || IsWildcard(listen)) names.insert(names.end(), {"127.0.0.1", "localhost", "::1"});
  return names;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dashboard>> Dashboard::Start(Options options) {
  if (!IsLoopback(options.server.listen) && options.server.tls.certificate.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "listen on ", FormatHostPort(options.server.listen),
        ": an address that is not loopback needs TLS; give --cert and --key, or a loopback address"));
  }
  TC_ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> server, HttpServer::Listen(options.server));
  std::unique_ptr<Dashboard> dashboard(new Dashboard(std::move(options), std::move(server)));
  // The server starts last: from here on requests come, on threads that use all members.
  TC_RETURN_IF_ERROR(
      dashboard->server_->Serve([own = dashboard.get()](const HttpRequest& request, bool certificate) {
        return own->Handle(request, certificate);
      }));
  return dashboard;
}

Dashboard::Dashboard(Options options, std::unique_ptr<HttpServer> server)
    : options_(std::move(options)),
      tls_(server->tls()),
      base_(absl::StrCat(Scheme(tls_), FormatHostPort(AddressFor(*server, options_.server.listen)))),
      // Cookies do not tell ports apart: each dashboard of a host needs a name of its own.
      cookie_(absl::StrCat("tensorcast_dashboard_", server->port())),
      hosts_(AllowedHosts(NamesOf(*server, options_.server.listen), server->port(), tls_)),
      // Where bytes move, looks are twice as frequent as at lists.
      hub_(options_.documents,
           [min = options_.min_interval](const std::string& view) {
             const bool lively = view == "transfers" || view == "transfer" || view == "node";
             return lively ? min : 2 * min;
           }),
      server_(std::move(server)) {}

std::string Dashboard::NewLoginAddress() { return absl::StrCat(base_, "/login?token=", access_.NewToken()); }

bool Dashboard::IsOwn(const HttpRequest& request) const {
  // A page of another site sends the name of that site, also where the name was made to mean this host (DNS
  // rebinding).
  const std::string host = absl::AsciiStrToLower(request.Header("host"));
  if (std::ranges::find(hosts_, host) == hosts_.end()) return false;
  const std::string_view origin = request.Header("origin");
  // A browser names the page that makes a request: pages of other sites may make none.
  return origin.empty() || origin == absl::StrCat(Scheme(tls_), host);
}

// Runs on the thread of the connection, for many connections at once. The order of the checks: first the
// names in Host and Origin, which protect even the login from pages of other sites, then the session, then
// the document.
HttpResponse Dashboard::Handle(const HttpRequest& request, bool has_client_certificate) {
  if (!IsOwn(request)) {
    return PlainResponse(
        403, absl::StrCat("the request is for another host, or comes from a page of another site; open ",
                          base_, "\n"));
  }
  // These two paths are answered before the session is looked at, since a session begins with them.
  if (request.path == "/login") return Login(request);
  if (request.path.substr(1) == kLoginStyle) return Page(request);
  const std::string session = request.Cookie(cookie_);
  const bool api = absl::StartsWith(request.path, kApi);
  if (!has_client_certificate && !access_.HasSession(session)) {
    if (!api) return LoginPage(AddressOf(request), "");
    return ErrorResponse(
        absl::UnauthenticatedError("open the dashboard: a login is needed; run `tensorcast dashboard token` "
                                   "on the dashboard's host, and open the address that this command prints"));
  }
  // A client certificate has no session that could end.
  if (request.path == "/api/events") return Events(request, has_client_certificate ? "" : session);
  return api ? Document(request) : Page(request);
}

HttpResponse Dashboard::Login(const HttpRequest& request) {
  const auto parameter = [&](const std::string& name) {
    const auto found = request.query.find(name);
    return found == request.query.end() ? "" : found->second;
  };
  // The address gives `next`, and another site may have made the address: `next` must not lead to another
  // server.
  const std::string next = LocalPath(parameter("next"));
  const std::string token(absl::StripAsciiWhitespace(parameter("token")));
  if (token.empty()) return LoginPage(next, "");
  // A HEAD would use the token up without giving a cookie to a page.
  const std::optional<std::string> session = request.head ? std::nullopt : access_.Redeem(token);
  if (!session.has_value()) {
    return LoginPage(next, "This token is wrong, was used, or is too old. Get another one.");
  }
  HttpResponse response = PlainResponse(303, "");
  response.headers.emplace_back("Cache-Control", "no-store");
  // HttpOnly: scripts cannot read the cookie. SameSite=Lax: it comes with links that a user follows, and not
  // with requests that other pages make.
  response.headers.emplace_back(
      "Set-Cookie", absl::StrCat(cookie_, "=", *session, "; Path=/; HttpOnly; SameSite=Lax; Max-Age=",
                                 absl::ToInt64Seconds(kSessionLife), tls_ ? "; Secure" : ""));
  std::string location = absl::StrReplaceAll(next, {{" ", "%20"}, {"\"", "%22"}});
  response.headers.emplace_back("Location", std::move(location));
  return response;
}

HttpResponse Dashboard::Page(const HttpRequest& request) const {
  const std::string_view wanted = std::string_view(request.path).substr(1);
  const auto find = [&](std::string_view name) {
    return std::ranges::find(options_.page, name, &PageFile::name);
  };
  // The names are those of the embedded files alone: no path leads to the file system.
  auto file = find(wanted);
  // A view has its address as a path; the page itself shows what it names.
  const bool view = !absl::StrContains(wanted.substr(wanted.rfind('/') + 1), '.');
  if (file == options_.page.end() && view) file = find("index.html");
  if (file == options_.page.end()) return PlainResponse(404, "the dashboard has no such page; open /\n");
  HttpResponse response;
  // Pages change with the program alone. The browser asks each time (no-cache), and gets a page again only
  // where it has changed.
  const std::string tag = absl::StrCat("\"", file->hash, "\"");
  response.headers = {{"ETag", tag}, {"Cache-Control", "no-cache"}};
  response.content_type = TypeOf(file->name);
  if (absl::StrContains(request.Header("if-none-match"), tag)) {
    response.status = 304;
  } else {
    response.body = std::string(file->content);
  }
  return response;
}

HttpResponse Dashboard::Document(const HttpRequest& request) const {
  const absl::StatusOr<nlohmann::json> document =
      options_.documents(request.path.substr(kApi.size()), request.query);
  return document.ok() ? JsonResponse(200, ToText(*document)) : ErrorResponse(document.status());
}

HttpResponse Dashboard::Events(const HttpRequest& request, const std::string& session) {
  Query query = request.query;
  const std::string view = query["view"];
  query.erase("view");
  if (view.empty()) {
    return ErrorResponse(absl::InvalidArgumentError(
        "watch a view: the parameter view is missing; add view=NAME to the address"));
  }
  HttpResponse response;
  response.content_type = "text/event-stream";
  response.headers.emplace_back("Cache-Control", "no-store");
  response.stream = [this, view, query = std::move(query), session](ResponseStream& stream) {
    WriteEvents(view, query, session, stream);
  };
  return response;
}

// Runs on the connection's thread until the peer leaves, the session ends, or a write takes too long. The end
// of the server wakes it too: it interrupts the connection, so that IsOpen says false. The tab leaves its
// topic on return.
void Dashboard::WriteEvents(const std::string& view, const Query& query, const std::string& session,
                            ResponseStream& stream) {
  const std::unique_ptr<EventHub::Tab> tab = hub_.Watch(view, query);
  SteadyTime comment = SteadyNow() + kComment;
  while (stream.IsOpen() && (session.empty() || access_.HasSession(session))) {
    std::string event = tab->Next(kLook);
    // A line that means nothing keeps what is between from closing a connection that is only quiet.
    if (event.empty() && TimeLeft(comment) <= absl::ZeroDuration()) event = ":\n\n";
    if (event.empty()) continue;
    comment = SteadyNow() + kComment;
    if (!stream.Write(event)) return;
  }
}

}  // namespace tensorcast::dashboard
