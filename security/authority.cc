#include "security/authority.h"

#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "security/certificate.h"

namespace tensorcast::security {
namespace {

using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using CertificatePtr = std::unique_ptr<X509, decltype(&X509_free)>;
using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;

constexpr int kSerialBits = 128;
constexpr std::string_view kSpiffeScheme = "spiffe://";

// Each function of OpenSSL that fails leaves the reason in a queue of this thread, which Failed takes.
absl::Status Failed(std::string_view what) {
  return absl::InternalError(absl::StrCat("make a certificate: OpenSSL could not ", what, " (",
                                          TakeOpenSslErrors(), "); check the configuration of OpenSSL"));
}

// The text that `write` writes. `write` returns 1 on success, as OpenSSL's writers do.
absl::StatusOr<std::string> ToPem(absl::FunctionRef<int(BIO* bio)> write) {
  const BioPtr bio(BIO_new(BIO_s_mem()), BIO_free);
  char* data = nullptr;
  if (bio == nullptr || write(bio.get()) != 1) return Failed("write a PEM text");
  const long length = BIO_get_mem_data(bio.get(), &data);
  if (length <= 0) return Failed("write a PEM text");
  return std::string(data, static_cast<size_t>(length));
}

BioPtr Reading(std::string_view text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free};
}

absl::Status SetTime(ASN1_TIME* time, absl::Time value) {
  if (ASN1_TIME_set(time, absl::ToTimeT(value)) != nullptr) return absl::OkStatus();
  return Failed("set the times");
}

// A random number of 128 bits: the authority need not remember the numbers it gave before.
absl::Status SetSerial(X509* certificate) {
  const std::unique_ptr<BIGNUM, decltype(&BN_free)> number(BN_new(), BN_free);
  // The top bit is set, so the number is never 0, which RFC 5280 forbids.
  if (number == nullptr || BN_rand(number.get(), kSerialBits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) != 1 ||
      BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) == nullptr) {
    return Failed("choose a serial number");
  }
  return absl::OkStatus();
}

// `name` is OpenSSL's of the extension, `value` as its configuration files write it.
absl::Status AddExtension(X509* certificate, X509* issuer, const char* name, const std::string& value) {
  X509V3_CTX context;
  // The values need no section of a configuration file, so none is read.
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> extension(
      X509V3_EXT_conf(nullptr, &context, name, value.c_str()), X509_EXTENSION_free);
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return Failed(absl::StrCat("add the extension ", name));
  }
  return absl::OkStatus();
}

// Begins a certificate of either kind, an authority or a peer: key, serial number, validity and subject.
absl::StatusOr<CertificatePtr> Begin(EVP_PKEY* key, const std::string& common_name,
                                     const Validity& validity) {
  CertificatePtr certificate(X509_new(), X509_free);
  if (certificate == nullptr || X509_set_version(certificate.get(), X509_VERSION_3) != 1 ||
      X509_set_pubkey(certificate.get(), key) != 1) {
    return Failed("set the version and the key");
  }
  TC_RETURN_IF_ERROR(SetSerial(certificate.get()));
  TC_RETURN_IF_ERROR(SetTime(X509_getm_notBefore(certificate.get()), validity.from));
  TC_RETURN_IF_ERROR(SetTime(X509_getm_notAfter(certificate.get()), validity.until));
  X509_NAME* const subject = X509_get_subject_name(certificate.get());
  const std::string shown = common_name.substr(0, 64);  // X.509's limit; the URI is what counts
  if (X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>(shown.data()),
                                 static_cast<int>(shown.size()), -1, 0) != 1) {
    return Failed("set the name");
  }
  return certificate;
}

// ECDSA on P-256: small certificates and cheap signatures in a handshake.
absl::StatusOr<KeyPtr> NewKey() {
  KeyPtr key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  if (key == nullptr) return Failed("make a key");
  return key;
}

absl::StatusOr<CertifiedKey> SignedBy(EVP_PKEY* signer, X509* certificate, EVP_PKEY* key) {
  if (X509_sign(certificate, signer, EVP_sha256()) <= 0) return Failed("sign the certificate");
  CertifiedKey made;
  TC_ASSIGN_OR_RETURN(made.certificate,
                      ToPem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); }));
  TC_ASSIGN_OR_RETURN(made.key, ToPem([&](BIO* bio) {
                        return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
                      }));
  return made;
}

}  // namespace

// Self-signed. It may sign certificates of peers, and no further authorities (pathlen:0).
absl::StatusOr<CertifiedKey> MakeAuthority(std::string_view trust_domain, const Validity& validity) {
  TC_RETURN_IF_ERROR(Annotate(CheckTrustDomain(trust_domain), "make an authority"));
  TC_ASSIGN_OR_RETURN(const KeyPtr key, NewKey());
  TC_ASSIGN_OR_RETURN(const CertificatePtr made,
                      Begin(key.get(), absl::StrCat("TensorCast authority of ", trust_domain), validity));
  X509* const certificate = made.get();
  if (X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) != 1) {
    return Failed("set the issuer");
  }
  TC_RETURN_IF_ERROR(
      AddExtension(certificate, certificate, "basicConstraints", "critical,CA:TRUE,pathlen:0"));
  TC_RETURN_IF_ERROR(AddExtension(certificate, certificate, "keyUsage", "critical,keyCertSign,cRLSign"));
  TC_RETURN_IF_ERROR(AddExtension(certificate, certificate, "subjectKeyIdentifier", "hash"));
  // As SPIFFE names one that signs: by its trust domain alone.
  TC_RETURN_IF_ERROR(AddExtension(certificate, certificate, "subjectAltName",
                                  absl::StrCat("URI:", kSpiffeScheme, trust_domain)));
  return SignedBy(key.get(), certificate, key.get());
}

absl::StatusOr<std::string> DomainOfAuthority(std::string_view certificate) {
  const CertificatePtr authority(PEM_read_bio_X509(Reading(certificate).get(), nullptr, nullptr, nullptr),
                                 X509_free);
  if (authority == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the file has no certificate in PEM form (",
                                                   TakeOpenSslErrors(),
                                                   "); make an authority with `tensorcast certs init`"));
  }
  TC_ASSIGN_OR_RETURN(const std::string uri, UriOf(*authority));
  std::string_view domain = uri;
  if (!absl::ConsumePrefix(&domain, kSpiffeScheme) || !CheckTrustDomain(domain).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the certificate's URI name ", uri,
                     " is not spiffe:// and a trust domain; make an authority with `tensorcast certs init`"));
  }
  return std::string(domain);
}

// The URI is the name that peers check. The common name is for people.
absl::StatusOr<CertifiedKey> IssueCertificate(const CertifiedKey& authority, const Name& name,
                                              const Validity& validity) {
  const CertificatePtr issuer(
      PEM_read_bio_X509(Reading(authority.certificate).get(), nullptr, nullptr, nullptr), X509_free);
  const KeyPtr signer(PEM_read_bio_PrivateKey(Reading(authority.key).get(), nullptr, nullptr, nullptr),
                      EVP_PKEY_free);
  if (issuer == nullptr || signer == nullptr || X509_check_private_key(issuer.get(), signer.get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "issue a certificate: the authority's certificate and key are malformed or do not belong together (",
        TakeOpenSslErrors(),
        "); restore both files, or make an authority with `tensorcast certs init` in another folder"));
  }
  TC_ASSIGN_OR_RETURN(const KeyPtr key, NewKey());
  TC_ASSIGN_OR_RETURN(const CertificatePtr made,
                      Begin(key.get(), absl::StrCat(RoleText(name.role), " ", name.name), validity));
  X509* const certificate = made.get();
  if (X509_set_issuer_name(certificate, X509_get_subject_name(issuer.get())) != 1) {
    return Failed("set the issuer");
  }
  TC_RETURN_IF_ERROR(AddExtension(certificate, issuer.get(), "basicConstraints", "critical,CA:FALSE"));
  TC_RETURN_IF_ERROR(AddExtension(certificate, issuer.get(), "keyUsage", "critical,digitalSignature"));
  // Each end of a connection shows a certificate: a node serves and calls.
  TC_RETURN_IF_ERROR(AddExtension(certificate, issuer.get(), "extendedKeyUsage", "serverAuth,clientAuth"));
  TC_RETURN_IF_ERROR(
      AddExtension(certificate, issuer.get(), "subjectAltName", absl::StrCat("URI:", name.ToString())));
  TC_RETURN_IF_ERROR(AddExtension(certificate, issuer.get(), "authorityKeyIdentifier", "keyid"));
  return SignedBy(signer.get(), certificate, key.get());
}

}  // namespace tensorcast::security
