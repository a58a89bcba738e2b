#include "server.h"

#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "answers.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "certificate.h"
#include "log.h"
#include "metrics.h"
#include "served.h"
#include "state.h"
#include "store.h"
#include "trace.h"
#include "weights.h"

enum { TEMPLATE_LIMIT = 8 << 20, RESPONSES_BYTES = 256 << 20 };

void server_options_init(struct server_options *o)
{
    *o = (struct server_options){.host = "127.0.0.1",
                                 .port = 8080,
                                 .write_timeout_s = 60,
                                 .late_system = -1,
                                 .json_keepalive_s = 240,
                                 .responses_reasoning = RESPONSES_REASONING_ASKED,
                                 .n_responses = 256,
                                 .reasoning_field = FIELD_REASONING_CONTENT};
    limits_init(&o->limits);
}

/* ---- What the model directory tells --------------------------------------------------------- */

/* The first alias, else the directory's name. */
static lathe_status name_model(struct server *s, lathe_error *err)
{
    const struct server_options *o = &s->options;
    const char *name = o->model_dir;
    size_t n = strlen(name);
    if (o->alias.n) {
        name = o->alias.name[0];
        n = strlen(name);
    } else {
        while (n > 1 && name[n - 1] == '/')
            n--;
        size_t from = n;
        while (from > 0 && name[from - 1] != '/')
            from--;
        name += from;
        n -= from;
    }
    if (n == 0 || n >= sizeof s->model || utf8_valid_prefix(name, n) != n)
        return fail(err, LATHE_E_ARGUMENT, "%.60s is no name for a model", name);
    (void)snprintf(s->model, sizeof s->model, "%.*s", (int)n, name);
    return LATHE_OK;
}

static lathe_status read_template(struct server *s, lathe_error *err)
{
    struct buf path, text;
    unsigned char digest[SHA256_DIGEST_LENGTH];
    buf_init(&path, 1 << 16);
    buf_init(&text, TEMPLATE_LIMIT);
    buf_printf(&path, "%s/chat_template.jinja", s->options.model_dir);
    lathe_status st = buf_check(&path, "path", err);
    bool exists = !st && file_exists(buf_str(&path));
    if (exists)
        st = file_read(&text, buf_str(&path), err);
    if (exists && !st) {
        SHA256((const unsigned char *)buf_str(&text), text.len, digest);
        for (size_t i = 0; i < sizeof digest; i++)
            (void)snprintf(s->template_sha256 + 2 * i, 3, "%02x", digest[i]);
    }
    s->template = strdup(buf_str(&text));
    if (!st && !s->template)
        st = fail_memory(err, text.len);
    buf_release(&path);
    buf_release(&text);
    return st;
}

static lathe_status read_eos_token(struct server *s, lathe_error *err)
{
    struct buf path;
    struct json_doc d = {0};
    buf_init(&path, 1 << 16);
    buf_printf(&path, "%s/tokenizer_config.json", s->options.model_dir);
    lathe_status st = buf_check(&path, "path", err);
    if (!st && file_exists(buf_str(&path)))
        st = json_read_file(&d, buf_str(&path), &json_limits_model, err);
    const json_t *v = json_object_get(d.root, "eos_token");
    size_t n;
    const char *text = json_text(&d, json_is_object(v) ? json_object_get(v, "content") : v, &n);
    if (text && n < sizeof s->eos_token)
        (void)snprintf(s->eos_token, sizeof s->eos_token, "%s", text);
    json_release(&d);
    buf_release(&path);
    return st;
}

static lathe_status make_fingerprint(struct server *s, lathe_error *err)
{
    unsigned char digest[SHA256_DIGEST_LENGTH];
    const char *part[] = {lathe_version(), server_revision(s), lathe_build(), s->template_sha256};
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    bool ok = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1;
    for (size_t i = 0; ok && i < sizeof part / sizeof *part; i++)
        ok = EVP_DigestUpdate(md, part[i], strlen(part[i]) + 1) == 1;
    if (ok)
        weights_sample(s->options.model_dir, md);
    ok = ok && EVP_DigestFinal_ex(md, digest, NULL) == 1;
    EVP_MD_CTX_free(md);
    if (!ok)
        return fail(err, LATHE_E_MEMORY, "SHA-256 failed");
    (void)snprintf(s->fingerprint, sizeof s->fingerprint, "fp_%02x%02x%02x%02x%02x%02x", digest[0],
                   digest[1], digest[2], digest[3], digest[4], digest[5]);
    if (s->options.fingerprint)
        (void)snprintf(s->fingerprint, sizeof s->fingerprint, "%s", s->options.fingerprint);
    return LATHE_OK;
}

const char *server_revision(const struct server *s)
{
    return s->options.revision ? s->options.revision : "unknown";
}

/* ---- What SIGHUP reads again ---------------------------------------------------------------- */

static lathe_status read_keys(struct server *s, lathe_error *err)
{
    const struct server_options *o = &s->options;
    struct keys *keys = NULL;
    lathe_status st = keys_open(&keys, err);
    for (size_t i = 0; i < o->key.n && !st; i++)
        st = keys_add(keys, o->key.name[i], strlen(o->key.name[i]), err);
    for (size_t i = 0; i < o->key_file.n && !st; i++)
        st = keys_add_file(keys, o->key_file.name[i], err);
    if (!st) {
        pthread_mutex_lock(&s->lock);
        struct keys *old = s->keys;
        s->keys = keys;
        pthread_mutex_unlock(&s->lock);
        keys = old;
    }
    keys_close(keys);
    return st;
}

static lathe_status read_level(struct server *s, lathe_error *err)
{
    const char *option = s->options.log_level;
    enum log_level level = LOG_LEVEL_INFO;
    lathe_status st = option ? log_read_level(option, &level, err) : LATHE_OK;
    if (!st)
        atomic_store(&s->log_level, (int)level);
    return st;
}

static lathe_status read_certificate(struct server *s, lathe_error *err)
{
    const struct server_options *o = &s->options;
    if (!o->tls_cert != !o->tls_key)
        return fail(err, LATHE_E_ARGUMENT, "--tls-cert and --tls-key belong together");
    return o->tls_cert ? certificate_load(o->tls_cert, o->tls_key, err) : LATHE_OK;
}

void server_reload(struct server *s)
{
    static lathe_status (*const read[])(struct server * s, lathe_error * err) = {
        read_level, read_keys, read_certificate};
    lathe_error err;
    bool all = true;
    for (size_t i = 0; i < sizeof read / sizeof *read; i++)
        if (read[i](s, &err)) {
            log_notice(s, LOG_LEVEL_ERROR, "not read again: %s", err.message);
            all = false;
        }
    if (all)
        log_notice(s, LOG_LEVEL_INFO, "keys, certificate and log level were read again");
}

bool server_knows_key(struct server *s, const char *authorization, const char *x_api_key,
                      struct owner *owner)
{
    pthread_mutex_lock(&s->lock);
    bool knows = keys_match(s->keys, authorization, x_api_key, owner);
    pthread_mutex_unlock(&s->lock);
    return knows;
}

/* ---- Ids and the clock ---------------------------------------------------------------------- */

void server_id(const struct server *s, char out[25])
{
    static const char digit[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    unsigned char byte[24] = {0};
    if (s->options.id) {
        s->options.id(out);
        return;
    }
    (void)RAND_bytes(byte, sizeof byte);
    for (size_t i = 0; i < sizeof byte; i++)
        out[i] = digit[byte[i] % 62];
    out[sizeof byte] = 0;
}

/* ---- Life ----------------------------------------------------------------------------------- */

lathe_status server_open(struct server **out, const struct server_options *o, lathe_error *err)
{
    struct server *s = calloc(1, sizeof *s);
    if (!s)
        return fail_memory(err, sizeof *s);
    s->options = *o;
    s->created = server_now(s);
    (void)pthread_mutex_init(&s->lock, NULL);
    atomic_init(&s->phase, PHASE_LOADING);
    lathe_status st = name_model(s, err);
    if (!st)
        st = read_template(s, err);
    if (!st)
        st = read_eos_token(s, err);
    if (!st)
        st = make_fingerprint(s, err);
    if (!st)
        st = log_open(&s->log, err);
    if (!st)
        st = metrics_open(&s->metrics, err);
    if (!st)
        st = served_open(&s->served, err);
    if (!st && o->trace)
        st = trace_open(&s->trace, o->trace, o->trace_bytes, o->trace_text, err);
    if (!st && o->trace_text && !o->trace)
        st = fail(err, LATHE_E_ARGUMENT, "--trace-text is of --trace FILE");
    if (!st)
        st = read_level(s, err);
    if (!st)
        st = read_keys(s, err);
    if (!st)
        st = answers_open(&s->answers, ANSWERS_BYTES, err);
    if (!st)
        st = store_open(&s->store, o->n_responses, RESPONSES_BYTES, err);
    if (!st)
        st = read_certificate(s, err);
    if (!st)
        st = http_open(&s->http, s, err);
    if (st)
        server_close(s);
    else
        *out = s;
    return st;
}

int32_t server_port(const struct server *s)
{
    return http_port(s->http);
}

bool server_has_key(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    bool any = keys_any(s->keys);
    pthread_mutex_unlock(&s->lock);
    return any;
}

/* A name without what some clients append: "[1m]", ":tag". */
static size_t plain_length(const char *name)
{
    size_t n = strlen(name);
    if (n > 4 && strcmp(name + n - 4, "[1m]") == 0)
        n -= 4;
    for (size_t i = n; i-- > 0 && name[i] != '/';)
        if (name[i] == ':')
            n = i;
    return n;
}

static bool is_name(const char *name, size_t n, const char *of)
{
    return strcmp(name, of) == 0 || (n == strlen(of) && memcmp(name, of, n) == 0);
}

bool server_has_model(const struct server *s, const char *name)
{
    size_t n = plain_length(name);
    if (is_name(name, n, s->model))
        return true;
    for (size_t i = 0; i < s->options.alias.n; i++)
        if (is_name(name, n, s->options.alias.name[i]))
            return true;
    return false;
}

static void tell_weights(void *ctx, const lathe_error *err)
{
    if (err->status)
        log_notice(ctx, LOG_LEVEL_ERROR, "the weights' SHA-256 stays unknown: %s", err->message);
}

void server_ready(struct server *s, lathe_engine *engine)
{
    int loading = PHASE_LOADING;
    lathe_error err;
    s->engine = engine;
    /* Once the model is loaded, which it would slow. */
    if (weights_open(&s->weights, s->options.model_dir, tell_weights, s, &err))
        tell_weights(s, &err);
    (void)atomic_compare_exchange_strong(&s->phase, &loading, PHASE_READY);
}

void server_progress(struct server *s, double share)
{
    atomic_store(&s->progress, (int)(share * 1000));
}

bool server_has_failed(struct server *s, lathe_error *why)
{
    lathe_activity a;
    /* It may have failed under a request of which nobody wanted to know any more. */
    if (!atomic_load(&s->has_failed) && s->engine) {
        lathe_engine_activity(s->engine, &a, NULL, 0);
        if (a.failure) {
            (void)fail(why, LATHE_E_DEVICE, "%s", a.failure);
            server_note_failure(s, why);
        }
    }
    if (!atomic_load(&s->has_failed))
        return false;
    *why = s->device_error;
    return true;
}

void server_give_socket(struct server *s, struct listener *out)
{
    http_give_socket(s->http, out);
}

void server_drain(struct server *s, int64_t delay_ms, int64_t timeout_ms)
{
    const struct timespec delay = {.tv_sec = (time_t)(delay_ms / 1000),
                                   .tv_nsec = (long)(delay_ms % 1000) * 1000000L};
    atomic_store(&s->phase, PHASE_LEAVING);
    (void)nanosleep(&delay, NULL);
    atomic_store(&s->phase, PHASE_DRAINING);
    http_drain(s->http, timeout_ms);
}

void server_close(struct server *s)
{
    if (!s)
        return;
    http_close(s->http);
    weights_close(s->weights);
    keys_close(s->keys);
    answers_close(s->answers);
    store_close(s->store);
    log_close(s->log);
    metrics_close(s->metrics);
    served_close(s->served);
    trace_close(s->trace);
    if (s->options.tls_cert)
        certificates_release();
    pthread_mutex_destroy(&s->lock);
    free(s->template);
    free(s);
}
