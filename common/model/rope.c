#include "common/model/rope.h"

#include <math.h>

#include "common/base/assert.h"

#define LN2 0x1.62e42fefa39efp-1

/* ln(x), x >= 1: x = m 2^e, ln m = 2 atanh((m - 1) / (m + 1)) by its series; |s| < 0.172, so s^27 <
 * 2^-68. */
static double ln_of(double x)
{
    int e = 0;
    double m = frexp(x, &e); /* exact */
    double s;
    double s2;
    double sum = 0;

    if (m < 0x1.6a09e667f3bcdp-1) {
        m *= 2;
        e--;
    }
    s = (m - 1) / (m + 1);
    s2 = s * s;
    for (int k = 25; k >= 1; k -= 2) {
        sum = sum * s2 + 1.0 / k;
    }
    return 2 * s * sum + e * LN2;
}

/* exp(x), -700 < x <= 0, by 2^k times a Taylor series on |r| <= ln2 / 2. */
static double exp_of(double x)
{
    double k = floor(x / LN2 + 0.5);
    double r = x - k * LN2;
    double sum = 1;

    for (int i = 18; i >= 1; i--) {
        sum = 1 + sum * r / i;
    }
    return ldexp(sum, (int)k); /* exact */
}

void td_rope_freqs(float theta, uint32_t rope_dim, float *out_freq)
{
    double ln_theta;

    TD_REQUIRE(theta >= 1 && rope_dim % 2 == 0);
    ln_theta = ln_of((double)theta);
    for (uint32_t i = 0; i < rope_dim / 2; i++) {
        out_freq[i] = (float)exp_of(-2.0 * (double)i / (double)rope_dim * ln_theta);
    }
}

/* pi / 2 in three parts; the first two hold 28 bits each, so their products with a quadrant below
 * 2^25 are exact. */
#define PIO2_A 0x1.921fb54p+0
#define PIO2_B 0x1.10b4610p-30
#define PIO2_C 0x1.a62633145c06ep-58

static double sin_poly(double r)
{
    double r2 = r * r;
    double sum = 0;

    for (int k = 16; k >= 2; k -= 2) {
        sum = (1 - sum) * r2 / (k * (k + 1));
    }
    return r * (1 - sum);
}

static double cos_poly(double r)
{
    double r2 = r * r;
    double sum = 0;

    for (int k = 17; k >= 1; k -= 2) {
        sum = (1 - sum) * r2 / (k * (k + 1));
    }
    return 1 - sum;
}

void td_rope_angles(const float *freq, uint32_t half, uint32_t pos, float *out_cos, float *out_sin)
{
    TD_REQUIRE(pos < TD_ROPE_MAX_POS);
    for (uint32_t i = 0; i < half; i++) {
        double x = (double)pos * (double)freq[i]; /* 24 x 24 bits: exact */
        double k = floor(x / (PIO2_A + PIO2_B) + 0.5);
        double r = ((x - k * PIO2_A) - k * PIO2_B) - k * PIO2_C;
        double s = sin_poly(r);
        double c = cos_poly(r);

        switch ((uint32_t)k & 3u) {
        case 0:
            break;
        case 1: {
            double t = s;

            s = c;
            c = -t;
            break;
        }
        case 2:
            s = -s;
            c = -c;
            break;
        default: {
            double t = s;

            s = -c;
            c = t;
            break;
        }
        }
        out_cos[i] = (float)c;
        out_sin[i] = (float)s;
    }
}
